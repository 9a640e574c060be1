"""Spectrograms of music: frames of samples, mel bands (Slaney 1998), loudness, and what of it begins.

`S` samples, `T` frames, `M` mel bands.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.fft  # type: ignore[import-untyped]
import scipy.signal  # type: ignore[import-untyped]
from numpy.typing import NDArray

Floats = NDArray[np.floating]

FRAME, HOP = 2048, 512  # samples
NUM_BANDS = 128
FRAMES_AT_ONCE = 2048
LOUDEST_RANGE_DB = 80.0
LEAST_POWER = 1e-10
LINEAR_HZ, LINEAR_MELS = 200.0 / 3, 15.0  # a mel's width below 1 kHz, and the mels there
LOG_STEP = np.log(6.4) / 27.0


def frames_of(samples: Floats, size: int = FRAME, hop: int = HOP) -> Iterator[Floats]:
    """Yield the frames [size, T] of samples [S], centred, some at a time."""
    padded = np.pad(samples, size // 2, mode="constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    for first in range(0, len(windows), FRAMES_AT_ONCE):
        yield windows[first : first + FRAMES_AT_ONCE].T


def hann(size: int) -> Floats:
    """Return the periodic Hann window [size, 1]."""
    window: Floats = scipy.signal.get_window("hann", size, fftbins=True)[:, None]
    return window


def mel_spectrogram(samples: Floats, rate_hz: int) -> Floats:
    """Return the power of mel bands [M, T], float32, of samples [S]."""
    bands, window = mel_bands(rate_hz), hann(FRAME)
    parts = []
    for frames in frames_of(samples):
        spectrum = scipy.fft.rfft(window * frames, axis=0).astype(np.complex64)
        parts.append(np.dot(bands, np.abs(spectrum) ** 2).astype(np.float32))
    return np.concatenate(parts, axis=1)


def mel_bands(rate_hz: int) -> Floats:
    """Return triangles over the frequencies of a frame [M, 1 + size / 2], of equal areas."""
    frequencies = np.fft.rfftfreq(n=FRAME, d=1.0 / rate_hz)
    edges = _hz_of(np.linspace(0.0, float(_mel_of(rate_hz / 2.0)), NUM_BANDS + 2))
    widths, ramps = np.diff(edges), np.subtract.outer(edges, frequencies)
    rising = -ramps[:NUM_BANDS] / widths[:NUM_BANDS, None]
    falling = ramps[2:] / widths[1:, None]
    bands: Floats = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    bands *= (2.0 / (edges[2:] - edges[:NUM_BANDS]))[:, None]
    return bands


def _mel_of(frequency_hz: float) -> float:
    if frequency_hz < LINEAR_HZ * LINEAR_MELS:
        return frequency_hz / LINEAR_HZ
    return LINEAR_MELS + float(np.log(frequency_hz / (LINEAR_HZ * LINEAR_MELS)) / LOG_STEP)


def _hz_of(mels: Floats) -> Floats:
    curved = LINEAR_HZ * LINEAR_MELS * np.exp(LOG_STEP * (mels - LINEAR_MELS))
    return np.where(mels >= LINEAR_MELS, curved, LINEAR_HZ * mels)


def loudness(power: Floats, range_db: float | None = LOUDEST_RANGE_DB) -> Floats:
    """Return decibels of power, at most so far below the loudest."""
    levels = 10.0 * np.log10(np.maximum(LEAST_POWER, power))
    return levels if range_db is None else np.maximum(levels, levels.max() - range_db)


def onset_strength(levels: Floats) -> Floats:
    """Return how much louder bands [M, T] get from frame to frame, [T]."""
    rising = np.mean(np.maximum(0.0, levels[:, 1:] - levels[:, :-1]), axis=0)
    late = 1 + FRAME // (2 * HOP)
    strength: Floats = np.pad(rising, (late, 0), mode="constant")[: levels.shape[1]]
    return strength


def cepstrum(levels: Floats, count: int) -> Floats:
    """Return the first coefficients [T, count] of the cosine transform of bands [M, T], float32."""
    coefficients: Floats = scipy.fft.dct(levels, axis=0, type=2, norm="ortho")[:count].T.astype(np.float32)
    return coefficients
