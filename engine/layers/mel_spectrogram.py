"""Mel spectrograms of waveforms, with Slaney's scale and areas (Slaney 1998, Auditory Toolbox).

`B` batch, `S` samples, `N` frames, `M` bands.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

LINEAR_HZ = 200.0 / 3.0  # a mel, below the kilohertz from which on the scale is logarithmic
BREAK_HZ = 1000.0
LOG_STEP = math.log(6.4) / 27.0


def mel_of(hz: float) -> float:
    """Return the mel of a frequency."""
    if hz < BREAK_HZ:
        return hz / LINEAR_HZ
    return BREAK_HZ / LINEAR_HZ + math.log(hz / BREAK_HZ) / LOG_STEP


def hz_of(mels: torch.Tensor) -> torch.Tensor:
    """Return the frequencies of mels."""
    break_mel = BREAK_HZ / LINEAR_HZ
    logarithmic = BREAK_HZ * torch.exp(LOG_STEP * (mels - break_mel))
    return torch.where(mels >= break_mel, logarithmic, LINEAR_HZ * mels)


def mel_bands(num_bins: int, num_bands: int, lowest_hz: float, highest_hz: float, rate_hz: int) -> torch.Tensor:
    """Return the triangles [num_bins, num_bands] by which bins of a spectrum add up to bands of equal area."""
    bins = torch.linspace(0, rate_hz // 2, num_bins)
    edges = hz_of(torch.linspace(mel_of(lowest_hz), mel_of(highest_hz), num_bands + 2))
    widths = edges[1:] - edges[:-1]
    slopes = edges[None] - bins[:, None]  # [bins, bands + 2]
    falling, rising = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles = torch.minimum(falling, rising).clamp(min=0.0)
    return triangles * (2.0 / (edges[2:] - edges[:-2]))[None]


def magnitudes(waveform: torch.Tensor, window: int, hop: int) -> torch.Tensor:
    """Return the spectrum [B, window / 2 + 1, N] of waveforms [B, S], whose ends are mirrored. float32."""
    extra = window - hop
    padded = functional.pad(waveform[:, None].float(), (extra // 2, (extra + 1) // 2), mode="reflect")[:, 0]
    shape = torch.hann_window(window, device=waveform.device)
    spectrum = torch.stft(
        padded, window, hop_length=hop, win_length=window, window=shape, center=False, return_complex=True
    )
    return torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-6)
