"""Features of music for WanDancer: loudness, notes, tempo and beats of sounds that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from darkroom.engine.media.music.beats import beats, onsets, tempo, tempo_of
from darkroom.engine.media.music.chroma import chroma
from darkroom.engine.media.music.features import music_features
from darkroom.engine.media.music.spectrogram import FRAME, HOP, loudness, mel_bands, mel_spectrogram

RATE_HZ = 22050
A_NOTE = 9  # of the notes from C on


def tone(hz: float, seconds: float = 2.0) -> np.ndarray:
    times = np.arange(int(RATE_HZ * seconds)) / RATE_HZ
    return np.sin(2 * np.pi * hz * times).astype(np.float32)


def clicks(bpm: float, seconds: float = 12.0) -> np.ndarray:
    """Return short bursts of noise at a tempo."""
    samples = np.zeros(int(RATE_HZ * seconds), dtype=np.float32)
    noise = np.random.default_rng(0).standard_normal(800).astype(np.float32)
    for start in np.arange(0.1, seconds - 0.2, 60.0 / bpm):
        begin = int(start * RATE_HZ)
        samples[begin : begin + 800] = noise
    return samples


def test_the_bands_of_a_tone_are_those_of_its_frequency() -> None:
    power = mel_spectrogram(tone(1000.0), RATE_HZ)
    assert power.shape == (128, 1 + len(tone(1000.0)) // HOP)
    centres = mel_bands(RATE_HZ).argmax(axis=1) * RATE_HZ / FRAME
    assert abs(centres[power[:, 20].argmax()] - 1000.0) < 40


def test_loudness_is_at_most_eighty_decibels_below_the_loudest() -> None:
    levels = loudness(np.array([[1.0, 1e-3, 1e-12]]))
    assert levels[0].tolist() == [0.0, pytest.approx(-30.0), -80.0]
    assert loudness(np.array([[1.0, 1e-12]]), None)[0].tolist() == [0.0, pytest.approx(-100.0)]


@pytest.mark.parametrize(("hz", "note"), [(440.0, A_NOTE), (880.0, A_NOTE), (261.6, 0), (445.0, A_NOTE)])
def test_a_tone_is_its_note_in_every_octave_and_tuning(hz: float, note: int) -> None:
    notes = chroma(tone(hz), RATE_HZ)
    assert notes.shape[0] == 12
    assert (notes[:, 30:50].argmax(axis=0) == note).all()
    np.testing.assert_allclose(np.linalg.norm(notes, axis=0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("bpm", [90.0, 120.0, 150.0])
def test_clicks_have_their_tempo_and_beats(bpm: float) -> None:
    samples = clicks(bpm)
    assert tempo_of(samples, RATE_HZ) == pytest.approx(bpm, rel=0.04)
    strength = np.maximum(0.0, np.diff(loudness(mel_spectrogram(samples, RATE_HZ)).mean(axis=0), prepend=0.0))
    found = np.flatnonzero(beats(strength, bpm, RATE_HZ))
    apart = np.diff(found) * HOP / RATE_HZ
    assert len(found) >= 10 and np.abs(apart - 60.0 / bpm).max() < 0.06
    assert onsets(strength, RATE_HZ).sum() >= len(found)


def test_short_and_silent_music_has_a_usual_tempo_and_no_beats() -> None:
    assert tempo_of(np.zeros(100, dtype=np.float32), RATE_HZ) == 120.0
    assert tempo(np.zeros(10), RATE_HZ, 120.0) == 120.0
    assert not beats(np.zeros(1), 120.0, RATE_HZ).any()


def test_features_are_thirty_a_second() -> None:
    waveform = torch.from_numpy(clicks(120.0, 3.0))[None]
    features = music_features(torch.cat([waveform, waveform]), RATE_HZ)
    assert features.shape == (1, 91, 35) and features.dtype == torch.float32
    torch.testing.assert_close(features, music_features(waveform, RATE_HZ))
    assert set(features[0, :, 33:].flatten().tolist()) <= {0.0, 1.0}
