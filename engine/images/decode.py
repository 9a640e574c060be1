"""Picture files to tensors, the way ComfyUI reads them.

`B` frames, `H W` pixels. Pictures are float32 `[B, H, W, 3]`, 0..1; masks are float32 `[B, H, W]`, 1 where the picture
is transparent, and a 64 x 64 blank where it has no transparency.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

from engine.images.pixels import from_pillow

BLANK_MASK_PX = 64
EXPECTED = "a whole picture file that Pillow reads (PNG, JPEG, WebP, GIF, BMP, TIFF, ...)"


def read_image(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Every frame of a file, turned upright by its EXIF orientation, and its transparency.

    Frames of another size than the first are left out; a multi-picture JPEG (MPO) gives its first picture alone.
    Raises OSError or ValueError when the file is no picture or is cut short.
    """
    images, masks = [], []
    with Image.open(path) as file:
        first_size: tuple[int, int] | None = None
        for frame in _frames(file):
            picture = ImageOps.exif_transpose(frame)
            first_size = first_size or picture.size
            if picture.size == first_size:
                images.append(from_pillow(_as_8_bits(picture).convert("RGB")))
                masks.append(_mask_of(picture))
    return torch.stack(images), torch.stack(masks)


def read_channel(path: Path, channel: str) -> torch.Tensor:
    """One of `red`, `green`, `blue`, `alpha` as a mask [1, H, W]; alpha inverted, so that transparent is 1.

    Raises OSError or ValueError when the file is no picture or is cut short.
    """
    with Image.open(path) as file:
        picture = _as_8_bits(ImageOps.exif_transpose(file)).convert("RGBA")
    values = from_pillow(picture.getchannel(channel[0].upper()))
    return (1.0 - values if channel == "alpha" else values).unsqueeze(0)


def find_damage(path: Path) -> str | None:
    """Why the file cannot be read as a picture, or None. Decodes the first frame, smaller where that is cheaper."""
    try:
        with Image.open(path) as file:
            file.draft(None, (max(1, file.width // 8), max(1, file.height // 8)))
            file.load()
    except UnidentifiedImageError:
        return "not a picture in a known format"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return str(error) or type(error).__name__
    return None


def _frames(file: Image.Image) -> Iterator[Image.Image]:
    if file.format == "MPO":
        yield file
    else:
        yield from ImageSequence.Iterator(file)


def _as_8_bits(picture: Image.Image) -> Image.Image:
    """32-bit integer greys hold 16-bit values: divide by 255 (ComfyUI's choice; brighter than 257 by 0.8 %)."""
    return picture.point(lambda value: value * (1 / 255)) if picture.mode == "I" else picture


def _mask_of(picture: Image.Image) -> torch.Tensor:
    if "A" in picture.getbands():
        return 1.0 - from_pillow(picture.getchannel("A"))
    if picture.mode == "P" and "transparency" in picture.info:
        return 1.0 - from_pillow(picture.convert("RGBA").getchannel("A"))
    return torch.zeros(BLANK_MASK_PX, BLANK_MASK_PX)
