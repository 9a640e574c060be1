"""Reference images of HiDream-O1 in the two sizes in which it reads them: as patches, and by its image encoder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from darkroom.engine.families.hidream_o1.positions import Grid
from darkroom.engine.families.hidream_o1.transformer import PATCH_PX
from darkroom.engine.images.pixels import resize
from darkroom.engine.layers.patches import patches_channels_first

SEEN_PX = 384  # a side of a square as large as what the image encoder sees
SEEN_CELL_PX = 32  # of a token of the text
# Shares, by the most images for which each holds: of the drawn image's longer side, and of `SEEN_PX`.
PATCH_SHARES = ((1, 1.0), (2, 48 / 64), (4, 0.5), (8, 24 / 64), (math.inf, 0.25))
SEEN_SHARES = ((4, 1.0), (8, 48 / 64), (math.inf, 0.5))


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference image: its patches [1, R, 3 * 32 * 32] of -1..1 with their grid, and as it is seen [h, w, 3]."""

    patches: torch.Tensor
    grid: Grid
    seen: torch.Tensor

    @property
    def seen_grid(self) -> Grid:
        """The rows and columns of its tokens among those of the text."""
        return self.seen.shape[0] // SEEN_CELL_PX, self.seen.shape[1] // SEEN_CELL_PX


def prepared(images: Sequence[torch.Tensor], height: int, width: int) -> list[Reference]:
    """Return reference images [B, H, W, C] of 0..1, of which the first is taken, for an image of this size in pixels.

    The more there are, the smaller they become.
    """
    side_px = int(max(height, width) * _share(PATCH_SHARES, len(images)))
    seen_px = int(SEEN_PX * _share(SEEN_SHARES, len(images)))
    return [_prepared(image, side_px, seen_px) for image in images]


def _share(shares: Sequence[tuple[float, float]], num_images: int) -> float:
    return next(share for most, share in shares if num_images <= most)


def _prepared(image: torch.Tensor, side_px: int, seen_px: int) -> Reference:
    pixels = image[:1, ..., :3].clamp(0, 1).movedim(-1, 1).float()
    fitted = _of_area(pixels, side_px)
    height, width = fitted.shape[-2:]
    patches = patches_channels_first(fitted * 2.0 - 1.0, PATCH_PX)
    seen_width = math.sqrt(seen_px * seen_px * (width / height))
    seen_height = seen_width / (width / height)
    seen = resize(fitted, _whole_cells(seen_width), _whole_cells(seen_height), "lanczos")
    return Reference(patches, (height // PATCH_PX, width // PATCH_PX), seen[0].movedim(0, -1))


def _whole_cells(side_px: float) -> int:
    return max(SEEN_CELL_PX, int(side_px / SEEN_CELL_PX) * SEEN_CELL_PX)


def _of_area(pixels: torch.Tensor, side_px: int) -> torch.Tensor:
    """Return an image [1, 3, H, W] of at most the area of a square, in whole patches, its borders cut off to fit.

    One that is far larger is halved by means first.
    """
    while min(pixels.shape[-2:]) >= 2 * side_px:
        pixels = functional.avg_pool2d(pixels, 2)
    height, width = pixels.shape[-2:]
    new_width, new_height = _size_of_area(width, height, side_px)
    across, down = width / new_width, height / new_height
    size = (round(height / across), new_width) if across < down else (new_height, round(width / down))
    resized = functional.interpolate(pixels, size=size, mode="bicubic")
    top, left = (size[0] - new_height) // 2, (size[1] - new_width) // 2
    return resized[..., top : top + new_height, left : left + new_width]


def _size_of_area(width: int, height: int, side_px: int) -> tuple[int, int]:
    """Return the largest width and height of whole patches with about these proportions and at most that area."""
    scale = math.sqrt(side_px * side_px / (width * height))
    sizes = sorted(_rounded_sizes(width * scale, height * scale), key=lambda size: size[0] * size[1], reverse=True)
    chosen = next((size for size in sizes if size[0] * size[1] <= side_px * side_px), sizes[-1])
    return max(PATCH_PX, chosen[0]), max(PATCH_PX, chosen[1])


def _rounded_sizes(width: float, height: float) -> Iterator[tuple[int, int]]:
    for across in (round(width), math.floor(width)):
        for down in (round(height), math.floor(height)):
            yield across // PATCH_PX * PATCH_PX, down // PATCH_PX * PATCH_PX
