"""A stack of layers as one image.

Layers are flipped, scaled (Lanczos), rotated (bicubic) with 8 bits a channel, and mixed as light.
`H W` pixels: a canvas is float32 `[H, W, 4]`, not premultiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image

from darkroom.engine.images.layers.blend_modes import blended
from darkroom.engine.images.layers.layer import MAX_SIDE_PX, Layer, Placement
from darkroom.engine.images.pixels import from_pillow
from darkroom.engine.images.transfer_curves import linear_to_srgb, srgb_to_linear

Rgb = tuple[int, int, int]  # 0..255


def composite(
    stack: Sequence[tuple[Layer, Placement]],
    canvas_px: tuple[int, int],
    background: tuple[Rgb, float] | None,
    max_pixels: int,
    check_cancelled: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Return the layers, lowest first, on a canvas of that width and height: [H, W, 4], sRGB 0..1.

    `background` is a colour with its opacity. Raises ValueError for a canvas or a layer of more than `max_pixels`.
    """
    width, height = canvas_px
    _check_size("the canvas", width, height, max_pixels)
    canvas = torch.zeros(height, width, 4)
    if background is not None:
        color, opacity = background
        canvas[..., :3] = srgb_to_linear(torch.tensor(color) / 255.0)
        canvas[..., 3] = opacity
    for layer, placement in stack:
        check_cancelled()
        left, top, layer_width, layer_height = placement.bounds()
        _check_size("a layer", layer_width, layer_height, max_pixels)
        rows = slice(max(top, 0), min(top + layer_height, height))
        columns = slice(max(left, 0), min(left + layer_width, width))
        if not placement.is_visible or rows.start >= rows.stop or columns.start >= columns.stop:
            continue
        drawn = _drawn(layer, placement, layer_width, layer_height)
        part = drawn[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
        canvas[rows, columns] = _over(canvas[rows, columns], part, placement)
    colors = linear_to_srgb(canvas[..., :3].clamp(0.0, 1.0))
    return torch.cat((colors, canvas[..., 3:].clamp(0.0, 1.0)), dim=-1)


def bytes_of(values: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return values of 0..1 as rounded bytes."""
    rounded = np.rint(values.detach().cpu().float().numpy() * 255.0)
    return np.clip(rounded, 0, 255).astype(np.uint8)


def _check_size(what: str, width: int, height: int, max_pixels: int) -> None:
    if max(width, height) > 2 * MAX_SIDE_PX or width * height > max_pixels:
        raise ValueError(
            f"layers: {what} is too large; got {width}x{height} px, expected at most {max_pixels} pixels in all"
        )


def _drawn(layer: Layer, placement: Placement, width: int, height: int) -> torch.Tensor:
    """Return a layer as light [height, width, 4] in the middle of its bounds."""
    colors = bytes_of(layer.image)
    opacity = np.full(colors.shape[:2], 255, np.uint8) if layer.alpha is None else bytes_of(layer.alpha)
    image = Image.fromarray(np.dstack((colors, opacity)))
    if placement.is_flipped_h:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if placement.is_flipped_v:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    size = max(1, round(placement.width)), max(1, round(placement.height))
    if image.size != size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    if placement.rotation != 0:
        degrees = -math.degrees(placement.rotation)
        image = image.rotate(degrees, expand=True, resample=Image.Resampling.BICUBIC, fillcolor=(0, 0, 0, 0))
    left, top = (width - image.width) // 2, (height - image.height) // 2
    pixels = from_pillow(image.crop((-left, -top, width - left, height - top)))
    pixels[..., :3] = srgb_to_linear(pixels[..., :3])
    return pixels


def _over(below: torch.Tensor, layer: torch.Tensor, placement: Placement) -> torch.Tensor:
    """Return the image below with a layer over it: any other mode than normal stays within that image."""
    mixed = blended(placement.blend, below[..., :3], layer[..., :3])
    below_alpha, alpha = below[..., 3:], layer[..., 3:] * placement.opacity
    if placement.blend != "normal":
        is_kept = (below_alpha == 0) | (alpha == 0)
        colors = torch.where(is_kept, below[..., :3], mixed * alpha + below[..., :3] * (1 - alpha))
        return torch.cat((colors, below_alpha), dim=-1)
    union = alpha + (1 - alpha) * below_alpha
    share = torch.where(union == 0, 0.0, alpha / torch.where(union == 0, 1.0, union))
    colors = torch.lerp(below[..., :3], layer[..., :3], share.expand_as(mixed))
    colors = torch.where(alpha == 0, below[..., :3], torch.where(below_alpha == 0, layer[..., :3], colors))
    return torch.cat((colors, union), dim=-1)
