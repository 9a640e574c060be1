"""Names of the factors of norms: `scale` in published files, `weight` in those that later versions of ComfyUI save."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from darkroom.engine.families.base import Layout, Network, Shapes
from darkroom.engine.families.layouts import behind_first
from darkroom.engine.families.transformer_files import PREFIX, PREFIXES
from darkroom.engine.formats.weight_file import Names

SCALED: Final = re.compile(
    r"(.*(?:query_norm|key_norm)"
    r"|distilled_guidance_layer\.norms\.\d+|nerf_blocks\.\d+\.norm|nerf_final_layer(?:_conv)?\.norm)\.weight"
)


def with_later_names(network: Network, mark: str) -> Network:
    """Return a network that is found under the later names too. `mark` is the tensor by which its files are known."""
    return replace(
        network,
        layouts=(*network.layouts, later_layout(PREFIXES, mark)),
        in_checkpoint=(*network.in_checkpoint, later_layout((PREFIX,), mark)),
    )


def later_layout(prefixes: Sequence[str], mark: str) -> Layout:
    """Make the layout of files with the later names behind the first prefix that has `mark` under its later name."""
    return renamed_scales(behind_first(prefixes, mark.removesuffix(".scale") + ".weight"))


def renamed_scales(layout: Layout) -> Layout:
    """Return a layout whose factors of norms have the names that published files give them."""

    def found(shapes: Shapes) -> Names | None:
        names = layout(shapes)
        return None if names is None else {_published(name): item for name, item in names.items()}

    return found


def _published(name: str) -> str:
    match = SCALED.fullmatch(name)
    return name if match is None else f"{match[1]}.scale"
