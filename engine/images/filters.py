"""Filters on images and latents: Gaussian blur and unsharp masking, blending, dithering to a palette, YCbCr.

`B` batch, `C` channels, `H W` pixels. What convolves takes channels first (`[B, C, H, W]`), so that it serves latents
too; what looks at single pixels takes images as nodes pass them (`[B, H, W, C]`, 0..1).
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from darkroom.engine.images.pixels import from_pillow, to_pillow

BLEND_MODES = ("normal", "multiply", "screen", "overlay", "soft_light", "difference")
DITHERS = ("none", "floyd-steinberg", "bayer-2", "bayer-4", "bayer-8", "bayer-16")
SHARPEN_GAIN = 10.0  # how much of the blur is taken away for each unit of the sharpening's `alpha`


# --- neighbourhoods --------------------------------------------------------------------------------------------------


def gaussian_kernel(radius: int, sigma: float, device: torch.device | None = None) -> torch.Tensor:
    """Return a kernel [2r+1, 2r+1], sum 1. `sigma` is in units of the radius, not of pixels: it spans -1..1."""
    return square_kernel(radius * 2 + 1, sigma, device)


def square_kernel(size: int, sigma: float, device: torch.device | None = None) -> torch.Tensor:
    """Return `gaussian_kernel` for a side of `size` pixels."""
    axis = torch.linspace(-1, 1, size, device=device)
    distance = torch.sqrt(axis[:, None] ** 2 + axis[None, :] ** 2)
    weights = torch.exp(-(distance * distance) / (2.0 * sigma * sigma))
    return weights / weights.sum()


def filtered(samples: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Filter every channel of [B, C, H, W] with the square `kernel`, the border mirrored; same shape.

    Raises RuntimeError (torch's) when the kernel's radius reaches across the image.
    """
    radius, channels = kernel.shape[-1] // 2, samples.shape[1]
    padded = F.pad(samples, (radius, radius, radius, radius), "reflect")
    return F.conv2d(padded, kernel.to(samples.dtype).expand(channels, 1, -1, -1), groups=channels)


def gaussian_blur(samples: torch.Tensor, radius: int, sigma: float) -> torch.Tensor:
    return filtered(samples, gaussian_kernel(radius, sigma, samples.device))


def sharpen(samples: torch.Tensor, radius: int, sigma: float, alpha: float) -> torch.Tensor:
    """Sharpen by an unsharp mask: add `alpha` times ten of the difference to the blurred image. Not clamped."""
    kernel = gaussian_kernel(radius, sigma, samples.device) * -(alpha * SHARPEN_GAIN)
    kernel[radius, radius] += 1.0 - kernel.sum()
    return filtered(samples, kernel)


# --- blending --------------------------------------------------------------------------------------------------------


def blend(below: torch.Tensor, above: torch.Tensor, mode: str) -> torch.Tensor:
    """Blend by the modes of the W3C's compositing specification, section 9, on values of 0..1.

    `difference` is signed here (ComfyUI's has no absolute value, and saved workflows show that image).
    """
    if mode == "normal":
        return above
    if mode == "multiply":
        return below * above
    if mode == "screen":
        return 1 - (1 - below) * (1 - above)
    if mode == "overlay":
        return torch.where(below <= 0.5, 2 * below * above, 1 - 2 * (1 - below) * (1 - above))
    if mode == "soft_light":
        lifted = torch.where(below <= 0.25, ((16 * below - 12) * below + 4) * below, torch.sqrt(below))
        darker = below - (1 - 2 * above) * below * (1 - below)
        return torch.where(above <= 0.5, darker, below + (2 * above - 1) * (lifted - below))
    if mode == "difference":
        return below - above
    raise ValueError(f"blend mode {mode!r}; expected one of {', '.join(BLEND_MODES)}")


# --- palettes --------------------------------------------------------------------------------------------------------


def quantize(image: torch.Tensor, colors: int, dither: str) -> torch.Tensor:
    """Reduce [H, W, 3] of 0..1 to at most `colors` colours of its own, by Pillow's median cut."""
    whole = to_pillow(image)
    # Pillow dithers only towards a given palette, so the palette is made first and applied in a second pass.
    palette = whole.quantize(colors=colors)
    if dither.startswith("bayer"):
        whole = _with_ordered_noise(whole, palette, int(dither.split("-")[-1]))
    method = Image.Dither.FLOYDSTEINBERG if dither == "floyd-steinberg" else Image.Dither.NONE
    return from_pillow(whole.quantize(palette=palette, dither=method).convert("RGB"))


def bayer_matrix(order: int) -> torch.Tensor:
    """Return Bayer's threshold matrix [order, order] (a power of two), float32 in -0.5..0.5.

    B. E. Bayer, "An optimum method for two-level rendition of continuous-tone images", 1973.
    """
    matrix = np.zeros((1, 1), np.float32)
    for level in range(1, int(math.log2(order)) + 1):
        cells = 4**level
        scaled = cells * matrix
        matrix = np.block([[scaled - 1.5, scaled + 0.5], [scaled + 1.5, scaled - 0.5]]) / cells
    return torch.from_numpy(matrix.astype(np.float32))


def _with_ordered_noise(image: Image.Image, palette: Image.Image, order: int) -> Image.Image:
    """Shift an RGB image by the Bayer matrix, as far as the palette's colours are apart."""
    num_colors = len(palette.getpalette() or ()) // 3
    shift = (2 * 256 / num_colors) * bayer_matrix(order) + 0.5
    pixels = torch.from_numpy(np.array(image).astype(np.float32))  # [H, W, 3], 0..255
    height, width = pixels.shape[:2]
    tiled = shift.tile(math.ceil(height / order), math.ceil(width / order))[:height, :width]
    return Image.fromarray((pixels + tiled.unsqueeze(-1)).clamp(0, 255).to(torch.uint8).numpy())


# --- colours ---------------------------------------------------------------------------------------------------------

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
BLUE_GAIN, RED_GAIN = 0.564, 0.713  # of the colour differences B - Y and R - Y, to bring them to -0.5..0.5


def rgb_to_ycbcr(image: torch.Tensor) -> torch.Tensor:
    """Convert [..., 3] of 0..1 to luma and two colour differences around 0.5 (ITU-R BT.601, gains rounded)."""
    red, green, blue = image.unbind(-1)
    luma = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return torch.stack((luma, (blue - luma) * BLUE_GAIN + 0.5, (red - luma) * RED_GAIN + 0.5), dim=-1)


def ycbcr_to_rgb(image: torch.Tensor) -> torch.Tensor:
    """Invert `rgb_to_ycbcr` exactly, clamped to 0..1."""
    luma, blue, red = image[..., 0], image[..., 1] - 0.5, image[..., 2] - 0.5
    green_of_red, green_of_blue = LUMA[0] / (RED_GAIN * LUMA[1]), LUMA[2] / (BLUE_GAIN * LUMA[1])
    green = luma - green_of_red * red - green_of_blue * blue
    return torch.stack((luma + 1 / RED_GAIN * red, green, luma + 1 / BLUE_GAIN * blue), dim=-1).clamp(0, 1)
