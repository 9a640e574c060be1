"""A rough image of an unfinished latent, for those who watch it being drawn.

`B` batch, `C` latent channels, `h w` latent cells.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from PIL import Image, ImageOps

JPEG_QUALITY = 95
WEBP_QUALITY = 60
MAX_ANIMATION_FRAMES = 24  # of a longer video every second one, every third one, and so on
FRAME_MS = 250  # of four frames of a video at 16 a second


def latent_preview(
    latent: torch.Tensor, rgb_factors: Sequence[Sequence[float]], bias: Sequence[float] | None, size_px: int
) -> bytes:
    """Encode the first of `latent` [B, C, h, w] or [B, C, F, h, w] as a JPEG of at most `size_px` a side.

    It is scaled as the sampler sees it. Of a video it is the first frame.

    `rgb_factors` [C, 3] and `bias` [3] turn a cell into a colour in -1..1.
    """
    first = latent[0, :, 0] if latent.ndim == 5 else latent[0]
    return image_preview(_own_colours(first, rgb_factors, bias), "JPEG", size_px)


def latent_animation(
    latent: torch.Tensor, rgb_factors: Sequence[Sequence[float]], bias: Sequence[float] | None, size_px: int
) -> bytes:
    """Encode the first video of `latent` [B, C, F, h, w] as an animated WebP of at most `size_px` a side.

    Its frames are the latent frames, evenly thinned out to `MAX_ANIMATION_FRAMES`.
    """
    step = -(-latent.shape[2] // MAX_ANIMATION_FRAMES)
    frames = [_own_colours(frame, rgb_factors, bias) for frame in latent[0, :, ::step].unbind(1)]
    shown = [ImageOps.contain(frame, (size_px, size_px), Image.Resampling.BILINEAR) for frame in frames]
    encoded = io.BytesIO()
    first, *others = shown
    first.save(
        encoded, "WEBP", save_all=True, append_images=others, duration=FRAME_MS * step, loop=0,
        quality=WEBP_QUALITY, method=0,
    )  # fmt: skip
    return encoded.getvalue()


def _own_colours(
    cells: torch.Tensor, rgb_factors: Sequence[Sequence[float]], bias: Sequence[float] | None
) -> Image.Image:
    """Return cells [C, h, w] as an image of h x w pixels."""
    factors = torch.tensor(rgb_factors, dtype=torch.float32)
    colours = torch.einsum("chw,cr->hwr", cells.detach().to(device="cpu", dtype=torch.float32), factors)
    if bias is not None:
        colours = colours + torch.tensor(bias, dtype=torch.float32)  # [h, w, 3], about -1..1
    pixels = ((colours + 1.0) / 2.0).clamp(0.0, 1.0).mul(255.0).to(torch.uint8)
    return Image.fromarray(pixels.numpy())


def decoded_preview(image: torch.Tensor, size_px: int) -> bytes:
    """Return the first of images [B, 3, H, W] of -1..1 as a JPEG of at most `size_px` a side."""
    levels = ((image[0].detach().movedim(0, -1) + 1.0) / 2.0).clamp(0.0, 1.0).mul(255.0)
    return image_preview(Image.fromarray(levels.to(device="cpu", dtype=torch.uint8).numpy()), "JPEG", size_px)


def image_preview(image: Image.Image, image_format: str, size_px: int | None) -> bytes:
    """Encode an image as `JPEG` or `PNG`, made to fit `size_px` a side unless that is None."""
    if size_px is not None:
        image = ImageOps.contain(image, (size_px, size_px), Image.Resampling.BILINEAR)
    if image_format == "JPEG" and image.mode != "RGB":
        image = image.convert("RGB")
    encoded = io.BytesIO()
    image.save(encoded, format=image_format, quality=JPEG_QUALITY, compress_level=1)
    return encoded.getvalue()
