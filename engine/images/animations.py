"""Animations of frames that come one by one, and are not held: APNG, and frames as Pillow takes those of a WebP.

`H W` pixels, `C` channels; images are float32 `[H, W, C]`, 0..1. An animated PNG has the bytes that Pillow writes,
which wants all of its frames together.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, Protocol

import torch
from PIL import Image, ImageChops

from darkroom.engine.images.pixels import to_pillow

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LARGEST_DELAY = 65535  # numerator and denominator of a frame's seconds


class Frames(Protocol):
    """Images `[H, W, C]` in order, in a tensor or made as they are taken."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[torch.Tensor]: ...


class FrameSequence(Image.Image):
    """The frames of an animation as Pillow reads those of a file: each is there while it is sought, in order."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self.n_frames = len(frames)
        self._coming = iter(frames)
        self._place = -1
        self.seek(0)

    def seek(self, frame: int) -> None:
        """Take the frames up to this one; an earlier one is gone, and the last one stays."""
        while self._place < frame:
            image = to_pillow(next(self._coming))
            self.im, self._mode, self._size = image.im, image.mode, image.size
            self._place += 1

    def tell(self) -> int:
        return self._place


@dataclass(slots=True)
class _Frame:
    """A part of the image that changes, compressed, and for how many milliseconds it is seen."""

    data: list[bytes]
    left: int
    top: int
    width: int
    height: int
    duration_ms: int


class AnimatedPng:
    """A PNG file to which frames are added. It holds the last two: equal ones are one that is seen longer."""

    def __init__(self, file: BinaryIO, duration_ms: int, compress_level: int) -> None:
        self._file = file
        self._duration_ms, self._compress_level = duration_ms, compress_level
        self._before: Image.Image | None = None
        self._pending: _Frame | None = None
        self._count_at = self._num_frames = self._sequence = 0

    def add(self, image: Image.Image) -> None:
        """Add a frame. Raises ValueError for a frame that is to be seen longer than the format can say."""
        box, pixels = (0, 0, *image.size), image.convert("RGBA")
        if self._before is None:
            header, data = _encoded(image, self._compress_level)
            self._file.write(SIGNATURE)
            self._write(b"IHDR", header)
        else:
            changed = ImageChops.subtract_modulo(pixels, self._before)
            found = changed.getbbox(alpha_only=False)
            if found is None and self._is_seen_longer():
                return
            box = found or box
            _, data = _encoded(image.crop(box), self._compress_level)
            self._write_pending()
        left, top, right, bottom = box
        self._pending = _Frame(data, left, top, right - left, bottom - top, self._duration_ms)
        self._before = pixels

    def end(self, chunks: Mapping[str, str]) -> None:
        """Write what is left, with texts in private `comf` chunks behind the pixels."""
        if self._num_frames == 0:
            for part in self._pending.data if self._pending else ():
                self._write(b"IDAT", part)
        else:
            self._write_pending()
        for key, text in chunks.items():
            self._write(b"comf", key.encode("latin-1") + b"\0" + text.encode("latin-1"))
        self._write(b"IEND", b"")
        if self._num_frames:
            self._file.seek(self._count_at)
            self._write_count()

    def _is_seen_longer(self) -> bool:
        """Let the last frame be seen for as long as another, unless that is too long."""
        assert self._pending is not None
        longer = self._pending.duration_ms + self._duration_ms
        if _delay(longer).numerator > LARGEST_DELAY:
            return False
        self._pending.duration_ms = longer
        return True

    def _write_pending(self) -> None:
        frame = self._pending
        assert frame is not None
        delay = _delay(frame.duration_ms)
        if delay.numerator > LARGEST_DELAY:
            raise ValueError(f"fps: a frame is to be seen {float(delay):g} seconds; expected at most {LARGEST_DELAY}")
        is_first = self._num_frames == 0
        if is_first:
            self._count_at = self._file.tell()
            self._write_count()
        place = (frame.width, frame.height, frame.left, frame.top)
        self._write(b"fcTL", self._next() + struct.pack(">4I2H2B", *place, delay.numerator, delay.denominator, 0, 0))
        for part in frame.data:
            self._write(*((b"IDAT", part) if is_first else (b"fdAT", self._next() + part)))
        self._num_frames += 1

    def _write_count(self) -> None:
        self._write(b"acTL", struct.pack(">2I", self._num_frames, 0))

    def _next(self) -> bytes:
        """Return the number of the next chunk that has one."""
        self._sequence += 1
        return struct.pack(">I", self._sequence - 1)

    def _write(self, kind: bytes, data: bytes) -> None:
        checked = kind + data
        self._file.write(struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked)))


def _delay(duration_ms: int) -> Fraction:
    return Fraction(duration_ms / 1000).limit_denominator(LARGEST_DELAY)


def _encoded(image: Image.Image, compress_level: int) -> tuple[bytes, list[bytes]]:
    """Return the header of an image's PNG file, and its pixels in chunks."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=compress_level)
    content, place, parts = buffer.getbuffer(), len(SIGNATURE), []
    header = b""
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kind, data = bytes(content[place + 4 : place + 8]), content[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            header = bytes(data)
        elif kind == b"IDAT":
            parts.append(bytes(data))
        place += length + 12
    return header, parts


def write_animated_png(path: Path, images: Frames, texts: Mapping[str, str], fps: float, compress_level: int) -> None:
    """Write frames as one APNG, with `texts` in private `comf` chunks after the pixels, as ComfyUI's."""
    with path.open("wb") as file:
        animation = AnimatedPng(file, int(1000.0 / fps), compress_level)
        for image in images:
            animation.add(to_pillow(image))
        animation.end(texts)
