"""The part of an image that a mask covers, cut out in front of a plain background, for models of single objects.

`H W` pixels: an image is float32 `[H, W, 3]`, a mask `[H, W]`, both 0..1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn import functional

from darkroom.engine.images.morphology import dilate
from darkroom.engine.images.pixels import resize

FAINT = 0.05  # of a mask, taken for nothing
COVERED = 204  # of 255, from which a pixel counts for the box


class Frame(NamedTuple):
    """Left, top, right and bottom in pixels; parts may lie outside of the image."""

    left: int
    top: int
    right: int
    bottom: int


def cropped_to_mask(
    image: torch.Tensor,
    mask: torch.Tensor,
    width: int,
    height: int,
    margin: float,
    grow_px: int,
    background: tuple[float, float, float],
) -> torch.Tensor:
    """Return the masked part [height, width, 3], centred, with a margin as a factor, before a background.

    A mask that covers the border and not the middle is taken for its opposite, and so is one that covers nothing.
    """
    pixels = image.movedim(-1, 0)[None].cpu().float().clamp(0, 1)  # [1, 3, H, W]
    cover = _grown(_upright(mask.cpu().float().clamp(0, 1)), grow_px)[None, None]
    cover = torch.where(cover < FAINT, 0.0, cover)
    pixels, cover = _shrunk(pixels, cover, max(width, height))
    frame = _frame_of(cover[0, 0], width / height, margin)
    if frame is None:
        cover = 1.0 - cover if _frame_of(1.0 - cover[0, 0], 1.0, 1.0) else cover
        frame = _frame_of(cover[0, 0], width / height, margin) or Frame(0, 0, pixels.shape[3], pixels.shape[2])
    pixels, cover = _cut(pixels, frame), _cut(cover, frame)
    ground = pixels.new_tensor(background).view(1, 3, 1, 1)
    composed = (pixels * cover + ground * (1.0 - cover)).clamp(0, 1)
    return resize(composed, width, height, "lanczos")[0].movedim(0, -1)


def _upright(mask: torch.Tensor) -> torch.Tensor:
    """Return the mask, or its opposite where it covers the border and not the middle."""
    height, width = mask.shape
    border = torch.cat([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
    middle = mask[height // 4 : height - height // 4, width // 4 : width - width // 4]
    return 1.0 - mask if border.mean() > 0.5 and middle.mean() < 0.5 else mask


def _grown(mask: torch.Tensor, grow_px: int) -> torch.Tensor:
    """Return the mask grown by so many pixels, or shrunk where they are negative."""
    if grow_px == 0:
        return mask
    spread = mask if grow_px > 0 else 1.0 - mask
    spread = dilate(spread[None, None], 2 * abs(grow_px) + 1)[0, 0]
    return spread if grow_px > 0 else 1.0 - spread


def _shrunk(pixels: torch.Tensor, cover: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale image and mask so that no side is longer than `longest`."""
    height, width = pixels.shape[-2:]
    if max(height, width) <= longest:
        return pixels, cover
    scale = longest / max(height, width)
    size = (max(1, int(width * scale)), max(1, int(height * scale)))
    grey = resize(cover.expand(-1, 3, -1, -1), *size, "lanczos")
    return resize(pixels, *size, "lanczos"), grey[:, :1]


def _frame_of(cover: torch.Tensor, aspect: float, margin: float) -> Frame | None:
    """Return the frame of that aspect ratio around what a mask [H, W] covers; None where it covers nothing."""
    covered = ((cover.clamp(0, 1) * 255.0).to(torch.uint8) > COVERED).nonzero()
    if not covered.numel():
        return None
    (top, left), (bottom, right) = covered.amin(0).tolist(), covered.amax(0).tolist()
    width, height = right - left + 1, bottom - top + 1
    if width / height >= aspect:
        wanted_width, wanted_height = int(width * margin), int(width / aspect * margin)
    else:
        wanted_width, wanted_height = int(height * aspect * margin), int(height * margin)
    half_width, half_height = math.ceil(wanted_width / 2), math.ceil(wanted_height / 2)
    x, y = int((left + right) / 2 - half_width), int((top + bottom) / 2 - half_height)
    return Frame(x, y, x + 2 * half_width, y + 2 * half_height)


def _cut(image: torch.Tensor, frame: Frame) -> torch.Tensor:
    """Cut a frame out of [1, C, H, W], with zeros outside."""
    height, width = image.shape[-2:]
    return functional.pad(image, (-frame.left, frame.right - width, -frame.top, frame.bottom - height))
