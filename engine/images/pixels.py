"""Pixels as tensors: resizing, cropping, and the way between uint8 and float.

`B` batch, `C` channels, `H W` pixels. Functions that resize take channels first (`[B, C, H, W]`), so that they serve
latents as well as images; images between nodes are channels last (`[B, H, W, C]`, float32, 0..1).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image

IMAGE_METHODS = ("nearest-exact", "bilinear", "area", "bicubic", "lanczos")
LATENT_METHODS = ("nearest-exact", "bilinear", "area", "bicubic", "bislerp")


def resize(samples: torch.Tensor, width: int, height: int, method: str, crop: str = "disabled") -> torch.Tensor:
    """Resize `samples` [B, C, H, W], or videos [B, C, F, H, W] frame by frame, to `height` x `width`.

    Dtype and device are kept.

    `crop="center"` first cuts the sides (or top and bottom) off so that the aspect ratio is kept; "disabled" stretches.
    `bilinear` and `bicubic` do not antialias, `lanczos` does and rounds to 8 bits, as it is Pillow's.

    Raises ValueError for a side below 1.
    """
    if width < 1 or height < 1:
        raise ValueError(f"size to resize to: nothing would be left; got {width}x{height}, expected at least 1x1")
    if samples.ndim == 5:
        frames = resize(samples.transpose(1, 2).flatten(0, 1), width, height, method, crop)
        return frames.view(samples.shape[0], samples.shape[2], *frames.shape[1:]).transpose(1, 2)
    if crop == "center":
        samples = crop_to_aspect(samples, width, height)
    if method == "bislerp":
        return bislerp(samples, width, height)
    if method == "lanczos":
        return lanczos(samples, width, height)
    return F.interpolate(samples, size=(height, width), mode=method)


def resize_image(image: torch.Tensor, width: int, height: int, method: str, crop: str = "disabled") -> torch.Tensor:
    """`resize` for an image [B, H, W, C]."""
    return resize(image.movedim(-1, 1), width, height, method, crop).movedim(1, -1)


def resize_to_area(image: torch.Tensor, area_px: int, unit_px: int = 1) -> torch.Tensor:
    """Resize an image [B, H, W, C] to about that area, its sides multiples of `unit_px`, and return its colours."""
    height, width = image.shape[1:3]
    factor = math.sqrt(area_px / (height * width))
    new_width, new_height = (max(1, round(side * factor / unit_px)) * unit_px for side in (width, height))
    return resize_image(image, new_width, new_height, "area")[..., :3]


def colours_of(image: torch.Tensor, name: str) -> torch.Tensor:
    """Return the colours [..., 3] of an image or of images [..., C]. `name` is that of the input.

    Raises ValueError for an image of greys, which a network that reads colours cannot read.
    """
    if image.shape[-1] < 3:
        raise ValueError(f"{name}: no colours; got {image.shape[-1]} channels, expected at least 3")
    return image[..., :3]


def crop_to_aspect(samples: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Cut out the largest middle part of [B, C, H, W] with the aspect ratio `width / height`, to whole pixels."""
    old_height, old_width = samples.shape[-2:]
    old_aspect, aspect = old_width / old_height, width / height
    left = top = 0
    if old_aspect > aspect:
        left = round((old_width - old_width * (aspect / old_aspect)) / 2)
    elif old_aspect < aspect:
        top = round((old_height - old_height * (old_aspect / aspect)) / 2)
    return samples[..., top : old_height - top, left : old_width - left]


def lanczos(samples: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Resample [B, C, H, W], C of 1, 3 or 4, values 0..1, by Pillow's Lanczos, through 8 bits a channel."""
    resized = [
        from_pillow(to_pillow(image.movedim(0, -1)).resize((width, height), Image.Resampling.LANCZOS))
        for image in samples
    ]
    stacked = torch.stack(resized).reshape(samples.shape[0], height, width, samples.shape[1])  # greys have no C
    return stacked.movedim(-1, 1).to(samples.device, samples.dtype)


def bislerp(samples: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Resize [B, C, H, W] by spherical interpolation between neighbours, along the width and then the height.

    A pixel is a vector over channels: its direction is interpolated on the sphere, its length linearly, which keeps the
    norm that plain interpolation of noise-like latents loses.
    """
    result = _slerp_along(samples.float(), -1, width)
    return _slerp_along(result, -2, height).to(samples.dtype)


def _slerp_along(samples: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    old_size = samples.shape[dim]
    grid = torch.arange(old_size, dtype=torch.float32, device=samples.device).reshape(1, 1, -1)
    positions = F.interpolate(grid, size=size, mode="linear").flatten()  # half-pixel centres, clamped at the borders
    lower = positions.long()
    upper = (lower + 1).clamp(max=old_size - 1)
    shape = [1, 1, 1, 1]
    shape[dim] = size
    ratio = (positions - positions.floor()).reshape(shape)
    return _slerp(samples.index_select(dim, lower), samples.index_select(dim, upper), ratio)


def _slerp(first: torch.Tensor, second: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    """Interpolate vectors along dim 1; where they are parallel take the first, where opposite the straight line."""
    first_norm, second_norm = first.norm(dim=1, keepdim=True), second.norm(dim=1, keepdim=True)
    first_unit = torch.where(first_norm == 0, 0.0, first / first_norm)
    second_unit = torch.where(second_norm == 0, 0.0, second / second_norm)
    cosine = (first_unit * second_unit).sum(dim=1, keepdim=True)
    angle = torch.acos(cosine)
    direction = torch.sin((1.0 - ratio) * angle) / torch.sin(angle) * first_unit
    direction = direction + torch.sin(ratio * angle) / torch.sin(angle) * second_unit
    between = direction * (first_norm * (1.0 - ratio) + second_norm * ratio)
    between = torch.where(cosine > 1 - 1e-5, first, between)
    return torch.where(cosine < 1e-5 - 1, first * (1.0 - ratio) + second * ratio, between)


def to_uint8(image: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Convert [H, W, C] or [H, W] of 0..1 to uint8: clamped, then truncated (not rounded), as ComfyUI saves."""
    scaled = 255.0 * image.detach().cpu().float().numpy()
    clipped: npt.NDArray[np.uint8] = np.clip(scaled, 0, 255).astype(np.uint8)
    return clipped


def to_pillow(image: torch.Tensor) -> Image.Image:
    """Convert [H, W, C] of 0..1 to an 8-bit image: C of 1 is grey, 3 RGB, 4 RGBA."""
    pixels = to_uint8(image)
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)


def from_pillow(image: Image.Image) -> torch.Tensor:
    """Convert an 8-bit image to float32 [H, W, C] (or [H, W] of a single band), 0..1."""
    values = np.asarray(image).astype(np.float32)
    values /= 255.0
    return torch.from_numpy(values)
