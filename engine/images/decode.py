"""Picture files to tensors, the way ComfyUI reads them.

`B` frames, `H W` pixels. Pictures are float32 `[B, H, W, 3]`, 0..1; masks are float32 `[B, H, W]`, 1 where the picture
is transparent, and a 64 x 64 blank where it has no transparency.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

from engine.images.pixels import from_pillow

BLANK_MASK_PX = 64
MAX_FRAMES = 10_000
BYTES_PER_PIXEL = 40  # at the most while a picture is read: as floats, twice while frames are stacked, and as it was
EXPECTED = "a whole picture file that Pillow reads (PNG, JPEG, WebP, GIF, BMP, TIFF, ...)"


class PictureTooLarge(ValueError):
    """More pixels in all frames of a picture than may be read."""


def read_image(path: Path, max_pixels: int = sys.maxsize) -> tuple[torch.Tensor, torch.Tensor]:
    """Read every frame of a file, turned upright by its EXIF orientation, and its transparency.

    Frames of another size than the first are left out; a multi-picture JPEG (MPO) gives its first picture alone.
    Raises OSError or ValueError when the file is no picture or is cut short, PictureTooLarge before anything is
    decoded.
    """
    images, masks = [], []
    _check_pixels(path, max_pixels)
    with Image.open(path) as file:
        first_size: tuple[int, int] | None = None
        for frame in _frames(file):
            picture = ImageOps.exif_transpose(frame)
            first_size = first_size or picture.size
            if picture.size == first_size:
                images.append(from_pillow(_as_8_bits(picture).convert("RGB")))
                masks.append(_mask_of(picture))
    return _stacked(images), _stacked(masks)


def read_first_frame(path: Path, max_pixels: int = sys.maxsize) -> Image.Image:
    """Read the first frame of a file as it is stored, 16-bit greys as 8 bits.

    Raises OSError or ValueError when the file is no picture or is cut short, PictureTooLarge before it is decoded.
    """
    _check_pixels(path, max_pixels)
    with Image.open(path) as file:
        return _as_8_bits(file).copy()


def read_channel(path: Path, channel: str, max_pixels: int = sys.maxsize) -> torch.Tensor:
    """Read one of `red`, `green`, `blue`, `alpha` as a mask [1, H, W]; alpha inverted, so that transparent is 1.

    Raises OSError or ValueError when the file is no picture or is cut short, PictureTooLarge before it is decoded.
    """
    _check_pixels(path, max_pixels)
    with Image.open(path) as file:
        picture = _as_8_bits(ImageOps.exif_transpose(file)).convert("RGBA")
    values = from_pillow(picture.getchannel(channel[0].upper()))
    return (1.0 - values if channel == "alpha" else values).unsqueeze(0)


def find_damage(path: Path, max_pixels: int = sys.maxsize) -> str | None:
    """Return the reason that a file is no readable picture, or None. Decodes the first frame, smaller if cheaper."""
    try:
        _check_pixels(path, max_pixels)
        with Image.open(path) as file:
            file.draft(None, (max(1, file.width // 8), max(1, file.height // 8)))
            file.load()
    except UnidentifiedImageError:
        return "not a picture in a known format"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return str(error) or type(error).__name__
    return None


def _check_pixels(path: Path, max_pixels: int) -> None:
    """Raise PictureTooLarge when all frames together have more pixels, each at least those of a blank mask.

    The file is opened for that alone: going through its frames must not change what is read of it.
    """
    num_pixels = 0
    with Image.open(path) as file:
        for num_frames, (width, height) in enumerate(_sizes(file), start=1):
            num_pixels += max(width * height, BLANK_MASK_PX**2)
            if num_pixels > max_pixels or num_frames > MAX_FRAMES:
                found = f"at least {num_pixels} pixels in {num_frames} frames of up to {width}x{height} px"
                raise PictureTooLarge(f"{found}; expected at most {max_pixels} pixels and {MAX_FRAMES} frames")


def _sizes(file: Image.Image) -> Iterator[tuple[int, int]]:
    """Yield the size of each frame that would be read, decoding none."""
    if file.format == "TIFF":  # pages differ in size, and going to one decodes nothing
        for index in itertools.count():
            try:
                file.seek(index)
            except EOFError:
                return
            yield file.size
    num_frames = 1 if file.format == "MPO" else getattr(file, "n_frames", 1)
    yield from itertools.repeat(file.size, num_frames)


def _stacked(frames: list[torch.Tensor]) -> torch.Tensor:
    """Stack frames; a single one is not copied."""
    return frames[0].unsqueeze(0) if len(frames) == 1 else torch.stack(frames)


def _frames(file: Image.Image) -> Iterator[Image.Image]:
    if file.format == "MPO":
        yield file
    else:
        yield from ImageSequence.Iterator(file)


def _as_8_bits(picture: Image.Image) -> Image.Image:
    """Divide 32-bit integer greys (16-bit values) by 255 (ComfyUI's choice; brighter than 257 by 0.8 %)."""
    return picture.point(lambda value: value * (1 / 255)) if picture.mode == "I" else picture


def _mask_of(picture: Image.Image) -> torch.Tensor:
    if "A" in picture.getbands():
        return 1.0 - from_pillow(picture.getchannel("A"))
    if picture.mode == "P" and "transparency" in picture.info:
        return 1.0 - from_pillow(picture.convert("RGBA").getchannel("A"))
    return torch.zeros(BLANK_MASK_PX, BLANK_MASK_PX)
