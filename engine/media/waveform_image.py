"""Images of waveforms: the peaks of an audio file's first stream over its time, read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from darkroom.engine.media.opened import BadMedia, opened_for_reading

WIDTH_PX: Final = 512
HEIGHT_PX: Final = 128
COLOR: Final = (91, 141, 239, 255)
"""RGBA of the waveform, on a transparent ground; readable on white and on black."""

BLOCK_SAMPLES: Final = 256
"""Samples whose lowest and highest value are kept: at 48 kHz an hour of audio takes 5 MiB."""

Peaks = NDArray[np.float32]


def write_waveform(path: Path, target: Path) -> None:
    """Write an image of a file's waveform as PNG, WIDTH_PX x HEIGHT_PX. Raises BadMedia for a file without audio."""
    with opened_for_reading(path) as container:
        stream = next(iter(container.streams.audio), None)
        if stream is None:
            raise BadMedia("the file has no audio")
        peaks = peaks_of(container.decode(stream))
    Image.fromarray(drawn(peaks)).save(target, "PNG", compress_level=1)


def peaks_of(frames: Iterable[Any]) -> Peaks:
    """Return the lowest and highest value of each block of samples over all channels, [N, 2], of -1..1.

    Raises BadMedia for no samples.
    """
    found: list[Peaks] = []
    for frame in frames:
        samples = _as_float(frame.to_ndarray())  # [C, S], or [1, S * C] where the channels are interleaved
        samples = samples.T.reshape(-1)
        starts = np.arange(0, len(samples), BLOCK_SAMPLES * len(frame.layout.channels))
        if len(starts):
            pairs = np.minimum.reduceat(samples, starts), np.maximum.reduceat(samples, starts)
            found.append(np.stack(pairs, axis=1))
    if not found:
        raise BadMedia("the audio has no samples")
    peaks: Peaks = np.nan_to_num(np.concatenate(found))
    return peaks.clip(-1.0, 1.0)


def drawn(peaks: Peaks) -> NDArray[np.uint8]:
    """Return an image [HEIGHT_PX, WIDTH_PX, 4] with a line from the lowest to the highest value in each column."""
    starts = np.linspace(0, len(peaks), WIDTH_PX, endpoint=False).astype(int)
    lowest = np.minimum.reduceat(peaks[:, 0], starts)
    highest = np.maximum.reduceat(peaks[:, 1], starts)
    rows = 1 - (np.arange(HEIGHT_PX)[:, None] + 0.5) * 2 / HEIGHT_PX  # the middle of each row, 1 at the top
    half_px = 1 / HEIGHT_PX
    is_line = (rows <= highest + half_px) & (rows >= lowest - half_px)
    image = np.zeros((HEIGHT_PX, WIDTH_PX, 4), np.uint8)
    image[is_line] = COLOR
    return image


def _as_float(samples: NDArray[Any]) -> Peaks:
    """Return samples of any type as float32, full scale 1."""
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128.0) / 128.0
    if samples.dtype.kind == "i":
        return samples.astype(np.float32) / float(np.iinfo(samples.dtype).max)
    return samples.astype(np.float32)
