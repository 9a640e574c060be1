"""Image files decoded by FFmpeg, as ComfyUI does since 0.33.0; those that it does not read are left to Pillow.

`B` frames, `H W` pixels: images are float32 `[B, H, W, 3]`, alpha is float32 `[B, H, W]`, both 0..1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from darkroom.engine.media.frame_pixels import FramePixels
from darkroom.engine.media.opened import BadMedia, MediaUnsupported, opened_with

DEMUXERS = {
    "BMP": "bmp_pipe",
    "GIF": "gif",
    "JPEG": "jpeg_pipe",
    "JPEG2000": "j2k_pipe",
    "MPO": "jpeg_pipe",
    "PNG": "png_pipe",
    "TIFF": "tiff_pipe",
    "WEBP": "webp_pipe",
}
"""FFmpeg's reader of a file by Pillow's name of its format. Never guessed: a file may be made to be two things."""

ANIMATED = {"GIF": "gif", "PNG": "apng"}
NETPBM = {"1": "pbm_pipe", "L": "pgm_pipe", "I": "pgm_pipe", "RGB": "ppm_pipe"}


def demuxer_of(file: Image.Image) -> str | None:
    """Return FFmpeg's reader of a file that Pillow has opened, None for one that Pillow is to read.

    Those are animated WebP files, which FFmpeg cannot read, and animated AVIF files and those with alpha, of which it
    gives the colours alone.
    """
    if file.format == "PPM":
        return NETPBM.get(file.mode)
    if getattr(file, "is_animated", False) and file.format not in ("MPO", "TIFF"):
        return ANIMATED.get(file.format or "")
    if file.format == "AVIF":
        return "mov" if file.mode == "RGB" else None
    return DEMUXERS.get(file.format or "")


def read_frames(
    path: Path, demuxer: str, max_pixels: int, max_frames: int
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Decode the frames of a file: images and their alpha, or None where FFmpeg is missing or decodes no frame.

    Frames of another size than the first are left out. Raises ValueError for more pixels in all frames, or more
    frames.
    """
    convert = FramePixels()
    decoded: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    try:
        with opened_with(path, demuxer) as container:
            if not container.streams.video:
                return None
            for frame in _frames(container, only_first=demuxer not in ANIMATED.values()):
                decoded.append(convert.convert(frame))
                num_pixels = sum(image[..., 0].numel() for image, _ in decoded)
                if num_pixels > max_pixels or len(decoded) > max_frames:
                    found = f"at least {num_pixels} pixels in {len(decoded)} frames"
                    raise ValueError(f"{found}; expected at most {max_pixels} pixels and {max_frames} frames")
    except (MediaUnsupported, BadMedia):
        if not decoded:
            return None
    alike = [item for item in decoded if item[0].shape == decoded[0][0].shape]
    if not alike:
        return None
    alphas = [alpha for _, alpha in alike if alpha is not None]
    return _stacked([image for image, _ in alike]), _stacked(alphas) if alphas else None


def _frames(container: Any, *, only_first: bool) -> Any:
    for frame in container.decode(container.streams.video[0]):
        yield frame
        if only_first:
            return


def _stacked(frames: list[torch.Tensor]) -> torch.Tensor:
    """Stack frames; a single one is not copied."""
    return frames[0].unsqueeze(0) if len(frames) == 1 else torch.stack(frames)
