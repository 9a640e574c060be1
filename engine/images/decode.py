"""Image files to tensors, the way ComfyUI reads them: by FFmpeg, or by Pillow what that does not read.

`B` frames, `H W` pixels. Images are float32 `[B, H, W, 3]`, 0..1; masks are float32 `[B, H, W]`, 1 where the image
is transparent, and a 64 x 64 blank where it has no transparency.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

from darkroom.contract.image_kinds import HEAD_BYTES, describe_unread
from darkroom.engine.images.ffmpeg_frames import demuxer_of, read_frames
from darkroom.engine.images.lenient_pillow import lenient_pillow
from darkroom.engine.images.pixel_budget import BLANK_MASK_PX, MAX_FRAMES, PictureTooLarge, PixelBudget
from darkroom.engine.images.pixels import from_pillow
from darkroom.engine.log_context import report_warning

COLOURS = ("red", "green", "blue")
BYTES_PER_PIXEL = 40  # at the most while an image is read: as floats, twice while frames are stacked, and as it was
CUT_TYPES = (OSError, ValueError, SyntaxError, EOFError, IndexError)
"""Types that Pillow's decoders raise for files that are cut short or damaged."""
TEXT_WORDS = "text chunk", "MAX_TEXT_CHUNK"
JPEG_END = b"\xff\xd9"
JPEG_FILLERS = b"\xaa" * 512, b"\xe7\x18" * 256, b"\x00" * 512
JPEG_MARKER = re.compile(rb"\xff[\xc0-\xcf\xda-\xfe]")
START_OF_SCAN = b"\xff\xda"
EXPECTED = "a whole image file that Pillow reads (PNG, JPEG, WebP, GIF, BMP, TIFF, ...)"


Read = TypeVar("Read")

log = logging.getLogger("engine.images")


def read_image(path: Path, max_pixels: int = sys.maxsize) -> tuple[torch.Tensor, torch.Tensor]:
    """Read every frame of a file, turned upright by its EXIF orientation, and its transparency.

    Frames of another size than the first are left out; JPEG (MPO) and TIFF files of several images give the first.
    Of a file that is cut short or damaged Pillow decodes what is there, and a warning is reported. Raises OSError or
    ValueError when the file is no image, PictureTooLarge before anything is decoded.
    """
    return _leniently(path, lambda: _read_image(path, max_pixels))


def _read_image(path: Path, max_pixels: int) -> tuple[torch.Tensor, torch.Tensor]:
    _check_pixels(path, max_pixels)
    with Image.open(path) as file:
        demuxer = demuxer_of(file)
        if demuxer is not None:
            _load_small(file)  # raises for a damaged file, of which FFmpeg may decode a part without a word
    found = None if demuxer is None else read_frames(path, demuxer, max_pixels, MAX_FRAMES)
    if found is None:
        return _read_by_pillow(path)
    if found.problem is not None:
        _report_cut(path, found.problem)
    blank = torch.zeros(found.images.shape[0], BLANK_MASK_PX, BLANK_MASK_PX)
    return found.images, blank if found.alpha is None else 1.0 - found.alpha


def _read_by_pillow(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    images, masks = [], []
    with Image.open(path) as file:
        first_size: tuple[int, int] | None = None
        for frame in _frames(file):
            image = ImageOps.exif_transpose(frame)
            first_size = first_size or image.size
            if image.size == first_size:
                images.append(from_pillow(_as_8_bits(image).convert("RGB")))
                masks.append(_mask_of(image))
    return _stacked(images), _stacked(masks)


def read_first_frame(path: Path, max_pixels: int = sys.maxsize) -> Image.Image:
    """Read the first frame of a file as it is stored, 16-bit greys as 8 bits.

    A damaged file is read as by `read_image`. Raises OSError or ValueError when the file is no image, PictureTooLarge
    before it is decoded.
    """

    def read() -> Image.Image:
        _check_pixels(path, max_pixels)
        with Image.open(path) as file:
            return _as_8_bits(file).copy()

    return _leniently(path, read)


def read_channel(path: Path, channel: str, max_pixels: int = sys.maxsize) -> torch.Tensor:
    """Read one of `red`, `green`, `blue`, `alpha` of each frame as masks [B, H, W], by `read_image`; alpha inverted."""
    image, mask = read_image(path, max_pixels)
    return mask if channel == "alpha" else image[..., COLOURS.index(channel)].clone()


def find_damage(path: Path, max_pixels: int = sys.maxsize) -> str | None:
    """Return the reason that a file is no readable image, or None. Decodes the first frame, smaller if cheaper.

    A file that is cut short or damaged is readable if Pillow decodes what is there.
    """

    def open_small() -> None:
        _check_pixels(path, max_pixels)
        with Image.open(path) as file:
            _load_small(file)

    try:
        try:
            open_small()
        except PictureTooLarge:
            raise
        except CUT_TYPES as error:
            with lenient_pillow():
                _again(open_small, error)
    except UnidentifiedImageError:
        return _described(path) or "not an image in a known format"
    except (*CUT_TYPES, Image.DecompressionBombError) as error:
        return str(error) or type(error).__name__
    return None


def _load_small(file: Image.Image) -> None:
    """Decode the first frame of a file, smaller if cheaper. Raises what Pillow's decoders raise for a damaged file."""
    file.draft(None, (max(1, file.width // 8), max(1, file.height // 8)))
    file.load()


def _described(path: Path) -> str | None:
    """Return the name of a file that is none of the formats that are read, and what to do."""
    with path.open("rb") as file:
        found = describe_unread(file.read(HEAD_BYTES))
    if found is None:
        return None
    name, advice = found
    return f"{name}; {advice}" if advice else name


def _leniently(path: Path, read: Callable[[], Read]) -> Read:
    """Return the result of `read`, at the second try with all that Pillow decodes of a damaged file.

    A warning is reported where pixels are missing: not for texts that are too long, nor for the end of a JPEG alone.
    """
    try:
        return read()
    except PictureTooLarge:
        raise
    except CUT_TYPES as error:
        with lenient_pillow():
            found = _again(read, error)
            is_cut = not _lacks_no_pixels(path, error)
        if is_cut:
            _report_cut(path, str(error)[:200] or type(error).__name__)
        return found


def _report_cut(path: Path, problem: str) -> None:
    message = f"{path.name}: the image file is cut short or damaged ({problem}); drawn is what is there of it"
    report_warning(log, "image_cut", message)


def _again(read: Callable[[], Read], first: Exception) -> Read:
    """Return the result of `read`. Raises the first error where this try fails, too; PictureTooLarge."""
    try:
        return read()
    except PictureTooLarge:
        raise
    except CUT_TYPES:
        raise first from None


def _lacks_no_pixels(path: Path, error: Exception) -> bool:
    """Return True if what is damaged of a file lies beside its pixels. Call it while Pillow is lenient.

    Pillow ends a JPEG without its end marker by one. If pixels were missing, other bytes before that would change them.
    """
    if any(words in str(error) for words in TEXT_WORDS):
        return True
    content = path.read_bytes()
    if not content.startswith(b"\xff\xd8"):
        return False
    content = content.rstrip(b"\xff")
    last = deque(JPEG_MARKER.finditer(content), maxlen=1)
    if not last or last[0][0] != START_OF_SCAN:
        return False
    ended = _pixels_of(content + JPEG_END)
    return ended is not None and all(ended == _pixels_of(content + filler + JPEG_END) for filler in JPEG_FILLERS)


def _pixels_of(content: bytes) -> bytes | None:
    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.tobytes()
    except CUT_TYPES:
        return None


def _check_pixels(path: Path, max_pixels: int) -> None:
    """Raise PictureTooLarge when all frames together have more pixels, each at least those of a blank mask.

    The file is opened for that alone: going through its frames must not change what is read of it.
    """
    budget = PixelBudget(max_pixels)
    with Image.open(path) as file:
        for width, height in _sizes(file):
            budget.take(width, height)


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


def _as_8_bits(image: Image.Image) -> Image.Image:
    """Divide 32-bit integer greys (16-bit values) by 255 (ComfyUI's choice; brighter than 257 by 0.8 %)."""
    return image.point(lambda value: value * (1 / 255)) if image.mode == "I" else image


def _mask_of(image: Image.Image) -> torch.Tensor:
    if "A" in image.getbands():
        return 1.0 - from_pillow(image.getchannel("A"))
    if image.mode == "P" and "transparency" in image.info:
        return 1.0 - from_pillow(image.convert("RGBA").getchannel("A"))
    return torch.zeros(BLANK_MASK_PX, BLANK_MASK_PX)
