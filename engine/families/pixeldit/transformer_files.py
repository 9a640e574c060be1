"""Files of PixelDiT's transformer: published ones have its layers in a module `core`, and joined modulations of pixels.

A layer of them makes shift, scale and gate of attention and of feed-forward layers for each pixel of a patch, pixel by
pixel; the network has a layer for each of the two. `P` pixels of a patch, `E` channels of a pixel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from darkroom.engine.families.base import Layout, Shapes
from darkroom.engine.families.pixeldit.config import MARK, PATCH_PX
from darkroom.engine.families.transformer_files import PREFIX
from darkroom.engine.formats.weight_file import Item, Joined, Names, Part

PREFIXES = (PREFIX, "diffusion_model.", "model.", "net.", "")  # of files of the network alone
MODULES = ("core.", "net.", "")  # behind the prefix
LEFT_OUT = ("_repa_projector", "net_ema.")  # of training
JOINED, HALVES = ".adaLN_modulation.0.", ("msa", "mlp")
PIXELS = PATCH_PX**2
CHANNEL_GROUPS = 6  # of the joined layer's rows of a pixel


def pixel_layout(prefixes: Sequence[str]) -> Layout:
    """Make a layout of files that have the network behind the first of these prefixes, in one of its modules."""

    def layout(shapes: Shapes) -> Names | None:
        starts = (prefix for prefix in prefixes for module in MODULES if prefix + module + MARK in shapes)
        prefix = next(starts, None)
        if prefix is None:
            return None
        inner = {name: shape for name, shape in shapes.items() if name.startswith(prefix)}
        return dict(pair for name, shape in inner.items() for pair in _named(name, name.removeprefix(prefix), shape))

    return layout


def _named(name: str, own: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Item]]:
    """Yield the network's names of a file's tensor, given its name behind the prefix, and what of it they are."""
    if own.startswith(LEFT_OUT):
        return
    module = next(module for module in MODULES if own.startswith(module))
    ours = own.removeprefix(module)
    if not ours.startswith("pixel_blocks.") or JOINED not in ours:
        yield ours, name
        return
    block, kind = ours.split(JOINED)
    for index, half in enumerate(HALVES):
        yield f"{block}.adaLN_modulation_{half}.{kind}", _half(name, index, shape)


def _half(name: str, index: int, shape: tuple[int, ...]) -> Item:
    """Return the rows of attention (0) or of feed-forward layers (1) of the joined layer, [P * 6 * E, ...].

    Raises ValueError for rows that are not of so many pixels.
    """
    if not shape or shape[0] % (CHANNEL_GROUPS * PIXELS):
        raise ValueError(f"{name}: got shape {list(shape)}, expected rows for {PIXELS} pixels of {CHANNEL_GROUPS} each")
    return Joined(tuple(Part(name, 2 * pixel + index, 2 * PIXELS) for pixel in range(PIXELS)))
