"""Beats of music: its tempo, where sounds begin, and the beats (Ellis 2007), all from the onset strength.

`T` frames, 512 samples apart.
"""

from __future__ import annotations

import numpy as np
import scipy.fft  # type: ignore[import-untyped]
import scipy.signal  # type: ignore[import-untyped]
from numpy.typing import NDArray

from darkroom.engine.media.music.spectrogram import (
    FRAMES_AT_ONCE,
    HOP,
    Floats,
    loudness,
    mel_spectrogram,
    onset_strength,
)

USUAL_BPM, FASTEST_BPM, SPREAD_OCTAVES = 120.0, 320.0, 1.0
LEAST_FRAMES, LEAST_HOPS = 20, 10
SELF_LIKENESS_SECONDS = 8.0
LIKELIHOOD = 1e6
PEAK_DELTA, AROUND_SECONDS, BEFORE_SECONDS, WAIT_SECONDS = 0.07, 0.10, 0.03, 0.03
TIGHTNESS = 100.0
NARROW = 32.0  # of the bell that a beat's onset strength is gathered under
LEAST_SCORE, LEAST_OF_MEDIAN = 0.01, 0.5

Bools = NDArray[np.bool_]


def tempo_of(samples: Floats, rate_hz: int) -> float:
    """Return the tempo of samples [S] in beats a minute, 120 for short ones."""
    if len(samples) < HOP * LEAST_HOPS:
        return USUAL_BPM
    levels = loudness(mel_spectrogram(samples, rate_hz), None)
    return tempo(onset_strength(levels), rate_hz, USUAL_BPM)


def tempo(strength: Floats, rate_hz: int, expected_bpm: float) -> float:
    """Return the tempo of an onset strength [T] in beats a minute: how it repeats itself, near the expected tempo."""
    if len(strength) < LEAST_FRAMES:
        return USUAL_BPM
    length = min(int(np.round(SELF_LIKENESS_SECONDS * rate_hz / HOP)), len(strength))
    likeness = np.maximum(_likeness(strength, length), 0)
    bpm = np.concatenate([[np.inf], 60.0 * rate_hz / (HOP * np.arange(1.0, length))])
    prior = -0.5 * ((np.log2(bpm) - np.log2(expected_bpm)) / SPREAD_OCTAVES) ** 2
    prior[: int(np.argmax(bpm < FASTEST_BPM))] = -np.inf
    weighed = np.log1p(LIKELIHOOD * likeness) + prior
    return float(bpm[int(np.argmax(weighed[1:])) + 1])


def _likeness(strength: Floats, length: int) -> Floats:
    """Return how like an onset strength [T] is to itself so many frames later, [length], on the mean of all frames."""
    around = length // 2
    padded = np.pad(strength, (around, around), mode="linear_ramp", end_values=(0, 0))
    windows = np.lib.stride_tricks.sliding_window_view(padded, length)[: len(strength)]
    window = scipy.signal.get_window("hann", length, fftbins=True)
    size = scipy.fft.next_fast_len(2 * length - 1)
    total = np.zeros(length)
    for first in range(0, len(windows), FRAMES_AT_ONCE):
        spectra = scipy.fft.rfft(windows[first : first + FRAMES_AT_ONCE] * window, n=size, axis=1)
        found = scipy.fft.irfft(np.abs(spectra) ** 2, n=size, axis=1)[:, :length]
        largest = np.max(np.abs(found), axis=1, keepdims=True)
        total += np.sum(found / np.where(largest > 0, largest, 1.0), axis=0)
    return total / len(strength)


def onsets(strength: Floats, rate_hz: int) -> Bools:
    """Return at which frames [T] sounds begin: where the onset strength is the largest and above those around."""
    levels = strength - np.min(strength)
    levels = levels / np.max(levels) if np.max(levels) > 0 else levels
    before, around, wait = (int(seconds * rate_hz / HOP) for seconds in (BEFORE_SECONDS, AROUND_SECONDS, WAIT_SECONDS))
    found, frame = np.zeros(len(levels), dtype=bool), 0
    while frame < len(levels):
        nearby = levels[max(0, frame - around) : frame + around + 1]
        is_largest = levels[frame] == np.max(levels[max(0, frame - before) : frame + 1])
        found[frame] = is_largest and levels[frame] >= np.mean(nearby) + PEAK_DELTA
        frame += wait + 1 if found[frame] else 1
    return found


def beats(strength: Floats, bpm: float, rate_hz: int) -> Bools:
    """Return at which frames [T] beats are: the best chain of them at the tempo."""
    apart = np.round(rate_hz / HOP * 60.0 / bpm)
    if apart <= 0 or len(strength) < 2:
        return np.zeros(len(strength), dtype=bool)
    deviation = np.std(strength, ddof=1)
    levels = strength / deviation if deviation > 0 else strength
    bell = np.exp(-0.5 * (np.arange(-apart, apart + 1) * NARROW / apart) ** 2)
    scores: Floats = scipy.signal.convolve(levels, bell, mode="same")
    gathered, before = _chains(scores, int(apart))
    found = np.zeros(len(scores), dtype=bool)
    frame = _last_beat(gathered)
    while frame >= 0 and not found[frame]:
        found[frame] = True
        frame = int(before[frame])
    return _trimmed(found, scores)


def _chains(scores: Floats, apart: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the best score of a chain that ends at each frame, and the beat before that frame, -1 for none."""
    gathered, before = np.zeros(len(scores)), np.full(len(scores), -1, dtype=np.int64)
    gathered[0] = scores[0]
    least, is_silent = LEAST_SCORE * scores.max(), True
    half, double = int(np.round(apart / 2.0)), 2 * apart
    steps = np.arange(half, double + 1)
    costs = TIGHTNESS * (np.log(np.maximum(steps, 1)) - np.log(apart)) ** 2
    for frame in range(1, len(scores)):
        past = steps[(steps > 0) & (steps <= frame)]
        best, link = 0.0, -1
        if len(past):
            totals = gathered[frame - past] - costs[past - half]
            index = int(np.argmax(totals))
            best, link = totals[index], frame - int(past[index])
        gathered[frame] = scores[frame] + best
        if not (is_silent and scores[frame] < least):
            before[frame], is_silent = link, False
    return gathered, before


def _last_beat(gathered: Floats) -> int:
    """Return the last frame that ends a good chain, -1 for none."""
    peaks = np.zeros(len(gathered), dtype=bool)
    peaks[1:-1] = (gathered[1:-1] > gathered[:-2]) & (gathered[1:-1] >= gathered[2:])
    peaks[-1] = gathered[-1] > gathered[-2]
    if not np.any(peaks):
        return len(gathered) - 1
    good = np.flatnonzero(peaks & (gathered >= LEAST_OF_MEDIAN * np.median(gathered[peaks])))
    return int(good[-1]) if len(good) else -1


def _trimmed(found: Bools, scores: Floats) -> Bools:
    """Return beats without those before and behind the music."""
    if not np.any(found):
        return found
    window = np.hanning(5)
    smooth = np.convolve(scores[found], window)[len(window) // 2 : len(scores) + len(window) // 2]
    loud = np.flatnonzero(scores > 0.5 * np.sqrt(np.mean(smooth**2)))
    kept = np.zeros(len(found), dtype=bool)
    if len(loud):
        kept[loud[0] : loud[-1] + 1] = found[loud[0] : loud[-1] + 1]
    return kept
