"""Features of music for WanDancer, 30 a second: onsets, timbre, notes, where sounds begin, and beats."""

from __future__ import annotations

import numpy as np
import torch

from darkroom.engine.media.music.beats import beats, onsets, tempo, tempo_of
from darkroom.engine.media.music.chroma import chroma
from darkroom.engine.media.music.spectrogram import HOP, cepstrum, loudness, mel_spectrogram, onset_strength
from darkroom.engine.media.resample import resample

FEATURES_HZ = 30
ASSUMED_HZ = 22050  # the rate by which frequencies are told, as in the network's training
NUM_COEFFICIENTS = 20


def music_features(waveform: torch.Tensor, rate_hz: int) -> torch.Tensor:
    """Return features [1, T, 35], float32, of a waveform [C, S].

    They are the onset strength, 20 cepstral coefficients, 12 notes, and flags of onsets and of beats.
    """
    mono = waveform.float().mean(dim=0, keepdim=True)
    expected_bpm = tempo_of(mono[0].cpu().numpy(), rate_hz)
    samples = resample(mono, rate_hz, FEATURES_HZ * HOP)[0].cpu().numpy()
    levels = loudness(mel_spectrogram(samples, ASSUMED_HZ))
    strength = onset_strength(levels)
    at_tempo = tempo(strength, ASSUMED_HZ, expected_bpm)
    columns = (
        strength[:, None],
        cepstrum(levels, NUM_COEFFICIENTS),
        chroma(samples, ASSUMED_HZ).T,
        onsets(strength, ASSUMED_HZ)[:, None],
        beats(strength, at_tempo, ASSUMED_HZ)[:, None],
    )
    count = min(len(column) for column in columns)
    joined = np.concatenate([column[:count].astype(np.float32) for column in columns], axis=1)
    return torch.from_numpy(joined)[None]
