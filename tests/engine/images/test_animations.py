"""Animations written frame by frame: the bytes that Pillow writes of all frames together, and few of them at a time."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from darkroom.engine.images.animations import write_animated_png
from darkroom.engine.images.encode import write_animated_webp
from darkroom.engine.images.pixels import to_pillow

TEXTS = {"prompt": '{"1": "a"}', "workflow": "{}"}


def clip(places: list[int], channels: int = 3) -> torch.Tensor:
    """Return a frame for each place of a square on noise; equal places are equal frames."""
    frames = torch.rand(1, 40, 48, channels, generator=torch.Generator().manual_seed(0)).repeat(len(places), 1, 1, 1)
    for frame, place in zip(frames, places, strict=True):
        frame[place : place + 8, 2 * place : 2 * place + 8] = 1.0
    return frames


def by_pillow(frames: torch.Tensor, **options: Any) -> bytes:
    first, *others = [to_pillow(frame) for frame in frames]
    buffer = io.BytesIO()
    first.save(buffer, save_all=True, append_images=others, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("places", "channels", "fps"),
    [([0, 4, 9], 3, 10.0), ([0, 0, 4, 4, 4, 0], 4, 7.0), ([3], 3, 1.0), ([5, 5, 5], 3, 24.0), ([0, 1, 1, 1], 1, 0.06)],
)
def test_an_animated_png_has_the_bytes_of_pillows(tmp_path: Path, places: list[int], channels: int, fps: float) -> None:
    frames = clip(places, channels)
    chunks = PngInfo()
    for key, text in TEXTS.items():
        chunks.add(b"comf", f"{key}\0{text}".encode("latin-1"), after_idat=True)
    write_animated_png(tmp_path / "a.png", frames, TEXTS, fps, 4)
    expected = by_pillow(frames, format="PNG", pnginfo=chunks, compress_level=4, duration=int(1000.0 / fps))
    assert (tmp_path / "a.png").read_bytes() == expected


def test_an_animated_webp_has_the_bytes_of_pillows(tmp_path: Path) -> None:
    frames = clip([0, 4, 4, 9])
    write_animated_webp(tmp_path / "a.webp", frames, {}, 10.0, lossless=False, quality=80, method=4)
    assert (tmp_path / "a.webp").read_bytes() == by_pillow(
        frames, format="WEBP", duration=100, lossless=False, quality=80, method=4, exif=Image.Exif()
    )


class Counted:
    """Frames that are made as they are taken; `most` is how many of them were there at once."""

    def __init__(self, number: int) -> None:
        self.number, self.most = number, 0
        self._alive: list[weakref.ref[torch.Tensor]] = []

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.number):
            frame = clip([index])[0].clone()
            self._alive.append(weakref.ref(frame))
            gc.collect()
            self.most = max(self.most, sum(item() is not None for item in self._alive))
            yield frame


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_frames_are_freed_as_they_are_written(tmp_path: Path, kind: str) -> None:
    frames = Counted(12)
    if kind == "png":
        write_animated_png(tmp_path / "a", frames, TEXTS, 10.0, 4)
    else:
        write_animated_webp(tmp_path / "a", frames, TEXTS, 10.0, lossless=True, quality=80, method=0)
    assert frames.most <= 2
    with Image.open(tmp_path / "a") as written:
        assert getattr(written, "n_frames", 1) == 12
        written.seek(7)
        assert written.convert("RGB").tobytes() == to_pillow(clip([7])[0]).tobytes()
