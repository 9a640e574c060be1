"""Resampling keeps a tone's pitch and loudness, and removes what the lower rate cannot hold."""

from __future__ import annotations

import math

import pytest
import torch

from darkroom.engine.media.resample import resample


def tone(frequency_hz: float, rate_hz: int, seconds: float = 0.5) -> torch.Tensor:
    return torch.sin(torch.arange(int(rate_hz * seconds)) / rate_hz * 2 * math.pi * frequency_hz)[None, None]


@pytest.mark.parametrize(("from_hz", "to_hz"), [(44100, 48000), (48000, 44100), (8000, 44100), (44100, 22050)])
def test_a_tone_is_the_same_tone_at_another_rate(from_hz: int, to_hz: int) -> None:
    found, wanted = resample(tone(440, from_hz), from_hz, to_hz), tone(440, to_hz)
    assert found.shape[-1] == math.ceil(from_hz // 2 * to_hz / from_hz)
    middle = slice(to_hz // 10, -to_hz // 10)  # beyond the edges, where the filter sees silence
    assert (found[..., middle] - wanted[..., middle]).abs().max() < 2e-3


def test_a_tone_above_the_new_rate_vanishes() -> None:
    found = resample(tone(15000, 44100), 44100, 22050)
    assert found[..., 1000:-1000].abs().max() < 0.01


def test_the_shape_before_the_samples_stays() -> None:
    assert resample(torch.zeros(2, 3, 441), 44100, 48000).shape == (2, 3, 480)


def test_the_same_rate_changes_nothing() -> None:
    waveform = torch.rand(1, 2, 10)
    assert resample(waveform, 8000, 8000) is waveform


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0, expected at least 1 Hz"):
        resample(torch.zeros(1, 1, 10), 0, 8000)
