"""The controls of Z-Image (alibaba-pai 2025, "Fun ControlNet" 1.0, 2.0 and 2.1), files of `model_patches`."""

from __future__ import annotations

from collections.abc import Iterator

from darkroom.engine.families.base import Network, Shapes
from darkroom.engine.families.layouts import composed_layout
from darkroom.engine.families.z_image.diffusers_names import BLOCK, PARTS, QKV
from darkroom.engine.families.z_image.fun_control import EMBEDDER, MARK, ZImageFunControl, z_image_fun_control_config
from darkroom.engine.formats.weight_file import Item, Joined
from darkroom.engine.layers.shapes import count_children

STACKS = ("control_layers", "control_noise_refiner")
OWN = ("before_proj", "after_proj")


def _file_names(shapes: Shapes) -> Iterator[tuple[str, Item]]:
    """Yield (the network's name, what of the file it is) for all tensors that such a file may have."""
    for kind in ("weight", "bias"):
        yield f"{EMBEDDER}.{kind}", f"{EMBEDDER}.{kind}"
        for block in (f"{stack}.{index}" for stack in STACKS for index in range(count_children(shapes, stack))):
            names = {**BLOCK, **dict(zip(OWN, OWN, strict=True))}
            yield from ((f"{block}.{ours}.{kind}", f"{block}.{theirs}.{kind}") for theirs, ours in names.items())
            yield f"{block}.{QKV}.{kind}", Joined(tuple(f"{block}.{part}.{kind}" for part in PARTS))


CONTROL = Network(
    layouts=(composed_layout(("",), (MARK,), _file_names),),
    in_checkpoint=(),
    configure=z_image_fun_control_config,
    build=ZImageFunControl,
)
