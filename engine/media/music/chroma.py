"""Chroma of music: how strong each of the twelve notes is, normalised and smoothed (Müller and Ewert 2011, CENS).

Notes are found by a transform of constant quality (Brown 1991), octave by octave, tuned as the music is. `S` samples,
`T` frames, `K` bins of 36 an octave.
"""

from __future__ import annotations

import numpy as np
import scipy.fft  # type: ignore[import-untyped]
import scipy.ndimage  # type: ignore[import-untyped]
import scipy.signal  # type: ignore[import-untyped]
from numpy.typing import NDArray

from darkroom.engine.media.music.spectrogram import FRAME, HOP, Floats, frames_of, hann

NUM_NOTES, NUM_OCTAVES, BINS_PER_OCTAVE = 12, 7, 36
LOWEST_HZ = 32.70319566257483  # C1
A4_HZ = 440.0
LEVELS = (0.4, 0.2, 0.1, 0.05)  # of a note's share, each of which counts a quarter
SMOOTHED = 41  # frames
LEFT_OUT = 0.01  # share of a filter's magnitude that is left out
PITCHES_HZ = (150.0, 4000.0)
LEAST_OF_PEAK = 0.1  # of the strongest frequency
TUNING_STEPS = 100
HALVING_TAPS, HALVING_CUTOFF, HALVING_WINDOW = 321, 0.48, ("kaiser", 6.5)

Complex = NDArray[np.complexfloating]


def chroma(samples: Floats, rate_hz: int) -> Floats:
    """Return the strengths [12, T] of notes in samples [S], float32, of norm 1 in each frame."""
    bins = constant_quality(samples, rate_hz, _tuning(samples, rate_hz))
    notes = np.dot(_notes_of_bins(), bins)
    tiny = np.finfo(notes.dtype).tiny
    notes = notes / np.maximum(np.sum(np.abs(notes), axis=0, keepdims=True), tiny)
    steps = np.zeros_like(notes)
    for level in LEVELS:
        steps += (notes > level) * (1 / len(LEVELS))
    window = scipy.signal.get_window("hann", SMOOTHED + 2, fftbins=False)
    smooth: Floats = scipy.ndimage.convolve(steps, (window / np.sum(window))[None], mode="constant")
    norm = np.sqrt(np.sum(smooth**2, axis=0, keepdims=True))
    normed: Floats = smooth / np.maximum(norm, np.finfo(smooth.dtype).tiny)
    return normed


def constant_quality(samples: Floats, rate_hz: int, tuning: float) -> Floats:
    """Return the magnitudes [K, T] of bins from C1 on, float32, shifted by `tuning` bins."""
    num_bins = NUM_OCTAVES * BINS_PER_OCTAVE
    lowest = LOWEST_HZ * 2.0 ** (tuning / BINS_PER_OCTAVE)
    frequencies = lowest * 2.0 ** (np.arange(num_bins) / BINS_PER_OCTAVE)
    quality = 1.0 / _relative_widths(frequencies)
    lengths = quality * float(rate_hz) / frequencies
    octaves: list[Complex] = []
    rest, rate, hop = samples.astype(np.float32), float(rate_hz), HOP
    for octave in range(NUM_OCTAVES):
        end = num_bins - octave * BINS_PER_OCTAVE
        part = slice(end - BINS_PER_OCTAVE, end)
        filters = _filters(frequencies[part], quality[part] * rate / frequencies[part], rate) * np.sqrt(rate_hz / rate)
        size = 2 * (filters.shape[1] - 1)
        spectra = (np.dot(filters, scipy.fft.rfft(frames, axis=0)) for frames in frames_of(rest, size, hop))
        octaves.append(np.concatenate([*spectra], axis=1))
        rest, rate, hop = _halved(rest), rate / 2.0, hop // 2
    count = min(found.shape[1] for found in octaves)
    bins = np.concatenate([found[:, :count] for found in reversed(octaves)])
    magnitudes: Floats = np.abs(bins.astype(np.complex64) / np.sqrt(lengths)[:, None]).astype(np.float32)
    return magnitudes


def _relative_widths(frequencies: Floats) -> Floats:
    octaves = np.log2(frequencies)
    per_octave = np.empty_like(frequencies)
    per_octave[0], per_octave[-1] = 1.0 / (octaves[1] - octaves[0]), 1.0 / (octaves[-1] - octaves[-2])
    per_octave[1:-1] = 2.0 / (octaves[2:] - octaves[:-2])
    ratio: Floats = 2.0 ** (2.0 / per_octave)
    return (ratio - 1.0) / (ratio + 1.0)


def _filters(frequencies: Floats, lengths: Floats, rate_hz: float) -> Complex:
    """Return the spectra [n, 1 + size / 2] of tones of these frequencies under windows of these lengths."""
    size = int(2.0 ** np.ceil(np.log2(max(lengths))))
    tones = np.zeros((len(frequencies), size), dtype=np.complex64)
    for index, (frequency, length) in enumerate(zip(frequencies, lengths, strict=True)):
        times = np.arange(int(-length // 2), int(length // 2), dtype=float)
        angles = times * 2 * np.pi * frequency / rate_hz
        tone = (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)
        tone *= hann(len(tone))[:, 0]
        tone /= max(np.sum(np.abs(tone)), np.finfo(np.float32).tiny)
        before = (size - len(tone)) // 2
        tones[index, before : before + len(tone)] = tone
    tones *= lengths[:, None] / float(size)
    return _thinned(scipy.fft.fft(tones, n=size, axis=1)[:, : size // 2 + 1])


def _thinned(spectra: Complex) -> Complex:
    """Return spectra without their weakest values, which make up a hundredth of each."""
    strengths = np.abs(spectra)
    total = np.sum(strengths, axis=1, keepdims=True)
    ordered = np.sort(strengths, axis=1)
    gathered = np.cumsum(ordered / np.where(total == 0, 1.0, total), axis=1)
    least = np.take_along_axis(ordered, np.argmin(gathered < LEFT_OUT, axis=1)[:, None], axis=1)
    return np.where(strengths >= least, spectra, 0).astype(spectra.dtype)


def _halved(samples: Floats) -> Floats:
    """Return samples at half the rate, of the same power."""
    count = int(np.ceil(len(samples) / 2))
    taps = scipy.signal.firwin(HALVING_TAPS, HALVING_CUTOFF, window=HALVING_WINDOW)
    half = scipy.signal.resample_poly(samples.astype(np.float32), 1, 2, window=taps)[:count]
    half = np.pad(half, (0, count - len(half)))
    louder: Floats = (half / np.sqrt(0.5)).astype(np.float32)
    return louder


def _notes_of_bins() -> Floats:
    """Return the weights of bins [12, K] in each note, float32."""
    per_note = BINS_PER_OCTAVE // NUM_NOTES
    notes = np.roll(np.repeat(np.eye(NUM_NOTES), per_note, axis=1), -(per_note // 2), axis=1)
    return np.tile(notes, NUM_OCTAVES).astype(np.float32)


def _tuning(samples: Floats, rate_hz: int) -> float:
    """Return how far the music's notes are from those of A4 at 440 Hz, in bins, -0.5..0.5."""
    if len(samples) < FRAME:
        return 0.0
    pitches, strengths = _pitches(samples, rate_hz)
    if not len(pitches):
        return 0.0
    strong = pitches[strengths >= np.median(strengths)]
    octaves = np.log2(strong / (A4_HZ / 16))
    beside = np.mod(BINS_PER_OCTAVE * octaves, 1.0)
    beside[beside >= 0.5] -= 1.0
    counts, edges = np.histogram(beside, np.linspace(-0.5, 0.5, TUNING_STEPS + 1))
    return float(edges[np.argmax(counts)])


def _pitches(samples: Floats, rate_hz: int) -> tuple[Floats, Floats]:
    """Return the frequencies in Hz of the peaks of all frames, and their strengths, float32 each."""
    pitches, strengths, window = [], [], hann(FRAME)
    frequencies = np.fft.rfftfreq(FRAME, 1.0 / rate_hz)
    heard = ((frequencies >= PITCHES_HZ[0]) & (frequencies < min(PITCHES_HZ[1], rate_hz / 2)))[:, None]
    for frames in frames_of(samples):
        spectrum = np.abs(scipy.fft.rfft((window * frames).astype(np.float32), axis=0))
        shift = _peak_shifts(spectrum)
        strong = spectrum * (spectrum > LEAST_OF_PEAK * np.max(spectrum, axis=0, keepdims=True))
        places = np.nonzero(heard & _are_peaks(strong))
        pitch = ((places[0] + shift[places]) * float(rate_hz) / FRAME).astype(np.float32)
        strength = (spectrum + 0.5 * np.gradient(spectrum, axis=0) * shift)[places].astype(np.float32)
        pitches.append(pitch[pitch > 0])
        strengths.append(strength[pitch > 0])
    return np.concatenate(pitches), np.concatenate(strengths)


def _peak_shifts(spectrum: Floats) -> Floats:
    """Return how far the top of the parabola through a frequency and both beside it is from it, in frequencies."""
    shifts = np.zeros_like(spectrum)
    before, here, behind = spectrum[:-2], spectrum[1:-1], spectrum[2:]
    curve, slope = behind + before - 2 * here, (behind - before) / 2.0
    is_top = np.abs(slope) < np.abs(curve)
    inner = np.zeros_like(here)
    inner[is_top] = -slope[is_top] / curve[is_top]
    shifts[1:-1] = inner
    return shifts


def _are_peaks(spectrum: Floats) -> NDArray[np.bool_]:
    """Return True for frequencies that are stronger than both beside them; the lowest never is."""
    peaks = np.zeros(spectrum.shape, dtype=bool)
    peaks[1:-1] = (spectrum[1:-1] > spectrum[:-2]) & (spectrum[1:-1] >= spectrum[2:])
    peaks[-1] = spectrum[-1] > spectrum[-2]
    return peaks
