"""Image files decoded by FFmpeg, as ComfyUI does since 0.33.0; those that it does not read are left to Pillow.

`B` frames, `H W` pixels: images are float32 `[B, H, W, 3]`, alpha is float32 `[B, H, W]`, both 0..1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from darkroom.engine.images.pixel_budget import PixelBudget
from darkroom.engine.media.frame_pixels import FramePixels
from darkroom.engine.media.opened import BadMedia, decoding_with, opened_with

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

DECODERS = {
    "bmp_pipe": "bmp",
    "j2k_pipe": "jpeg2000",
    "pbm_pipe": "pbm",
    "pgm_pipe": "pgm",
    "png_pipe": "png",
    "ppm_pipe": "ppm",
    "tiff_pipe": "tiff",
    "webp_pipe": "webp",
}
"""FFmpeg's decoder of the files of a reader that decodes the image to open its file."""


class Frames(NamedTuple):
    """Images [B, H, W, 3], their alpha [B, H, W] if there is any, and the fault at which an animation ends early."""

    images: torch.Tensor
    alpha: torch.Tensor | None
    problem: str | None


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


def read_frames(path: Path, demuxer: str, max_pixels: int, max_frames: int) -> Frames | None:
    """Decode the frames of a file, None where FFmpeg is missing or decodes no frame.

    A frame of more pixels is not decoded. Frames of another size than the first are left out. Raises PictureTooLarge
    for more pixels in all frames, or more frames.
    """
    budget, convert = PixelBudget(max_pixels, max_frames), FramePixels()
    decoded: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    problem = None
    try:
        with _opened(path, demuxer, max_pixels) as frames:
            for frame in frames:
                budget.take(frame.width, frame.height)
                decoded.append(convert.convert(frame))
    except BadMedia as error:
        problem = str(error)
    alike = [item for item in decoded if item[0].shape == decoded[0][0].shape]
    if not alike:
        return None
    alphas = [alpha for _, alpha in alike if alpha is not None]
    return Frames(_stacked([image for image, _ in alike]), _stacked(alphas) if alphas else None, problem)


@contextmanager
def _opened(path: Path, demuxer: str, max_pixels: int) -> Iterator[Iterable[Any]]:
    """Yield the frames of a file: all of an animation, else the first."""
    if demuxer in DECODERS:
        with decoding_with(path, DECODERS[demuxer], max_pixels) as frames:
            yield islice(frames, 1)
        return
    with opened_with(path, demuxer, max_pixels) as container:
        found = container.decode(container.streams.video[0]) if container.streams.video else ()
        yield found if demuxer in ANIMATED.values() else islice(found, 1)


def _stacked(frames: list[torch.Tensor]) -> torch.Tensor:
    """Stack frames; a single one is not copied."""
    return frames[0].unsqueeze(0) if len(frames) == 1 else torch.stack(frames)
