"""The sizes of an autoencoder's levels, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from typing import NamedTuple

from darkroom.engine.layers.shapes import Shapes, count_children


class VaeLevels(NamedTuple):
    """Sizes of an encoder. `level_channels`: channels per level, largest image first."""

    level_channels: tuple[int, ...]
    blocks_per_level: int
    image_channels: int


def vae_levels(shapes: Shapes, convolution: str = "") -> VaeLevels:
    """Read the levels of the encoder. `convolution` is the name of the layer within each convolution, such as `conv.`.

    Raises KeyError where the encoder lacks a weight.
    """
    weight = f"{convolution}weight"
    levels = range(count_children(shapes, "encoder.down"))
    return VaeLevels(
        level_channels=tuple(shapes[f"encoder.down.{level}.block.0.conv1.{weight}"][0] for level in levels),
        blocks_per_level=count_children(shapes, "encoder.down.0.block"),
        image_channels=shapes[f"encoder.conv_in.{weight}"][1],
    )
