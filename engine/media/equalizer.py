"""Filters of two poles that raise or lower a band of audio.

R. Bristow-Johnson, "Cookbook formulae for audio equalizer biquad filter coefficients" (W3C Note, 2021), with the
coefficients in float32 and the output clipped to -1..1, as torchaudio's filters, which ComfyUI uses, have them.
`S` samples: a waveform is float32 `[..., S]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

BUTTERWORTH_Q = 0.707


def low_shelf(waveform: torch.Tensor, rate_hz: int, frequency_hz: float, gain_db: float) -> torch.Tensor:
    """Change the frequencies below `frequency_hz` by a gain."""
    cosine, alpha, gain = _terms(rate_hz, frequency_hz, gain_db, BUTTERWORTH_Q)
    root = 2 * torch.sqrt(gain) * alpha
    shelf = (gain - 1) * cosine
    over = [
        gain * ((gain + 1) - shelf + root),
        2 * gain * ((gain - 1) - (gain + 1) * cosine),
        gain * ((gain + 1) - shelf - root),
    ]
    under = [(gain + 1) + shelf + root, -2 * ((gain - 1) + (gain + 1) * cosine), (gain + 1) + shelf - root]
    return _filtered(waveform, over, under)


def high_shelf(waveform: torch.Tensor, rate_hz: int, frequency_hz: float, gain_db: float) -> torch.Tensor:
    """Change the frequencies above `frequency_hz` by a gain."""
    cosine, alpha, gain = _terms(rate_hz, frequency_hz, gain_db, BUTTERWORTH_Q)
    root = 2 * torch.sqrt(gain) * alpha
    shelf = (gain - 1) * cosine
    over = [
        gain * ((gain + 1) + shelf + root),
        -2 * gain * ((gain - 1) + (gain + 1) * cosine),
        gain * ((gain + 1) + shelf - root),
    ]
    under = [(gain + 1) - shelf + root, 2 * ((gain - 1) - (gain + 1) * cosine), (gain + 1) - shelf - root]
    return _filtered(waveform, over, under)


def peak(waveform: torch.Tensor, rate_hz: int, frequency_hz: float, gain_db: float, q: float) -> torch.Tensor:
    """Change the frequencies around `frequency_hz` by a gain; the larger `q`, the narrower the band."""
    cosine, alpha, gain = _terms(rate_hz, frequency_hz, gain_db, q)
    over = [1 + alpha * gain, -2 * cosine, 1 - alpha * gain]
    under = [1 + alpha / gain, -2 * cosine, 1 - alpha / gain]
    return _filtered(waveform, over, under)


def _terms(
    rate_hz: int, frequency_hz: float, gain_db: float, q: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the cosine of the angular frequency, the bandwidth term and the root of the amplitude, float32."""
    angle = 2 * math.pi * torch.tensor(float(frequency_hz)) / rate_hz
    alpha = torch.sin(angle) / 2 / torch.tensor(q)
    return torch.cos(angle), alpha, torch.exp(torch.tensor(gain_db) / 40 * math.log(10))


def _filtered(waveform: torch.Tensor, over: Sequence[torch.Tensor], under: Sequence[torch.Tensor]) -> torch.Tensor:
    from scipy.signal import lfilter  # type: ignore[import-untyped]  # only here: a third of a second

    numerator, denominator = (torch.stack(tuple(part)).double().numpy() for part in (over, under))
    samples = waveform.detach().cpu().double().numpy()
    filtered = lfilter(numerator, denominator, samples, axis=-1).clip(-1.0, 1.0)
    return torch.from_numpy(filtered.astype(np.float32)).to(waveform.device)
