"""Layouts of files with weights of a direction and a length, under either of torch's names for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from darkroom.engine.families.base import Layout, Network, Shapes
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.weight_norm import first_names
from darkroom.engine.settings import DtypePolicy


def normed_layout(prefixes: Sequence[str], mark: str) -> Layout:
    """Make a layout for the first of these prefixes behind which the file has the tensor `mark`."""

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if prefix + mark in shapes), None)
        if prefix is None:
            return None
        inner = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
        return {ours: prefix + theirs for ours, theirs in first_names(inner).items()}

    return layout


def audio_autoencoder(
    prefix: str,
    mark: str,
    *,
    configure: Callable[[Shapes], Any],
    build: Callable[[Any], nn.Module],
    dtypes: DtypePolicy,
    sizes: Mapping[str, Any],
) -> Network:
    """Describe an autoencoder of audio that checkpoints have behind a prefix."""
    prefixes = tuple(dict.fromkeys((prefix, "vae.", "first_stage_model.", "")))
    return Network(
        layouts=(normed_layout(prefixes, mark),),
        in_checkpoint=(normed_layout((prefix,), mark),),
        configure=configure,
        build=build,
        saved=partial(saved_behind, prefix),
        dtypes=dtypes,
        sizes=sizes,
    )
