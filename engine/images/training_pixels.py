"""Changes of single images through 8 bits a channel, as training sets are prepared: sizes, crops, grids, likeness.

`H W` are pixels, `C` channels: images are float32 `[H, W, C]` of 0..1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image

from darkroom.engine.images.pixels import from_pillow, to_pillow

HASH_SIDE = 8
HASH_BITS = HASH_SIDE * HASH_SIDE


class TooManyPixels(ValueError):
    """An image that a node would make is larger than may be made."""

    def __init__(self, width: int, height: int, most: int) -> None:
        super().__init__(f"images: {width} x {height} pixels would be made; expected at most {most} in all")


def size_by_edge(width: int, height: int, edge: int, *, longer: bool) -> tuple[int, int]:
    """Return width and height of an image whose longer (or shorter) side becomes `edge`, in its aspect ratio.

    Raises ValueError where the other side would have no pixel.
    """
    if (width > height) if longer else (width >= height):
        new = (edge, int(height * (edge / width))) if longer else (int(width * (edge / height)), edge)
    else:
        new = (int(width * (edge / height)), edge) if longer else (edge, int(height * (edge / width)))
    if 0 in new:
        raise ValueError(f"images: {width} x {height} would become {new[0]} x {new[1]}; expected a pixel at least")
    return new


def resized(image: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Resize [H, W, C] by Pillow's Lanczos."""
    return _with_channels(from_pillow(to_pillow(image).resize((width, height), Image.Resampling.LANCZOS)))


def cropped(image: torch.Tensor, left: int, top: int, width: int, height: int) -> torch.Tensor:
    """Cut [H, W, C] to at most `width` x `height` pixels from a corner on."""
    return _with_channels(from_pillow(to_pillow(image[top : top + height, left : left + width])))


def _with_channels(pixels: torch.Tensor) -> torch.Tensor:
    """Return the pixels of a single band [H, W] as [H, W, 1], others as they are."""
    return pixels if pixels.ndim == 3 else pixels[..., None]


def grid(
    images: Sequence[torch.Tensor], columns: int, cell: tuple[int, int], padding: int, max_pixels: int
) -> torch.Tensor:
    """Lay images [H, W, C] out in a black grid of cells (width, height), from left to right: [H, W, 3].

    Raises ValueError without images, and TooManyPixels.
    """
    if not images:
        raise ValueError("images: none for a grid; expected one at least")
    rows = -(-len(images) // columns)
    width = columns * cell[0] + (columns - 1) * padding
    height = rows * cell[1] + (rows - 1) * padding
    if width * height > max_pixels:
        raise TooManyPixels(width, height, max_pixels)
    page = Image.new("RGB", (width, height))
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        shown = to_pillow(image).resize(cell, Image.Resampling.LANCZOS).convert("RGB")
        page.paste(shown, (column * (cell[0] + padding), row * (cell[1] + padding)))
    return from_pillow(page)


def distinct(images: Sequence[torch.Tensor], similarity: float, check: Callable[[], None]) -> list[int]:
    """Return the indexes of images [H, W, C] that are like none before them.

    Two are alike whose hashes have at least `similarity` (0..1) of their bits in common. `check` is called before each
    image, and raises to end the search.
    """
    kept: list[tuple[int, int]] = []
    for index, image in enumerate(images):
        check()
        bits = _hash_of(image)
        if all(1.0 - (bits ^ other).bit_count() / HASH_BITS < similarity for _, other in kept):
            kept.append((index, bits))
    return [index for index, _ in kept]


def _hash_of(image: torch.Tensor) -> int:
    """Return a bit for each cell of an 8 x 8 grid: whether it is lighter than the mean (average hash)."""
    small = to_pillow(image).resize((HASH_SIDE, HASH_SIDE), Image.Resampling.LANCZOS).convert("L")
    cells = np.asarray(small).flatten()
    return int("".join("1" if cell > cells.mean() else "0" for cell in cells), 2)
