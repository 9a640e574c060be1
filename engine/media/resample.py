"""Resampling of waveforms by windowed-sinc interpolation.

J. O. Smith, "Digital Audio Resampling" (https://ccrma.stanford.edu/~jos/resample/), as a polyphase filter bank with a
Hann window; the filter's width and its cut-off are those of torchaudio's default, which ComfyUI uses.
`C` channels, `S` samples.
"""

from __future__ import annotations

import math

import torch

ZERO_CROSSINGS = 6  # of the sinc on either side
ROLL_OFF = 0.99  # cut-off as a share of the lower Nyquist frequency


def resample(waveform: torch.Tensor, from_hz: int, to_hz: int) -> torch.Tensor:
    """Resample a waveform [..., S] to `[..., ceil(S * to_hz / from_hz)]`. Raises ValueError for a rate below 1."""
    if min(from_hz, to_hz) < 1:
        raise ValueError(f"sample rate: not positive; got {min(from_hz, to_hz)}, expected at least 1 Hz")
    if from_hz == to_hz:
        return waveform
    divisor = math.gcd(from_hz, to_hz)
    num_in, num_out = from_hz // divisor, to_hz // divisor
    filters, half_width = _filter_bank(num_in, num_out, waveform)
    length = waveform.shape[-1]
    flat = waveform.reshape(-1, 1, length)
    padded = torch.nn.functional.pad(flat, (half_width, half_width + num_in))
    phases = torch.nn.functional.conv1d(padded, filters, stride=num_in)  # [N, num_out, S / num_in]
    interleaved = phases.transpose(1, 2).reshape(flat.shape[0], -1)
    wanted = math.ceil(num_out * length / num_in)
    return interleaved[:, :wanted].reshape(*waveform.shape[:-1], wanted)


def _filter_bank(num_in: int, num_out: int, like: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a filter for each output phase, `[num_out, 1, taps]`, and half the width of one in input samples."""
    cutoff = min(num_in, num_out) * ROLL_OFF
    half_width = math.ceil(ZERO_CROSSINGS * num_in / cutoff)
    taps = torch.arange(-half_width, half_width + num_in, dtype=torch.float64) / num_in
    shifts = torch.arange(0, -num_out, -1, dtype=torch.float64) / num_out
    place = ((taps[None, :] + shifts[:, None]) * cutoff).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS)
    window = torch.cos(place * (math.pi / ZERO_CROSSINGS / 2)) ** 2
    filters = torch.sinc(place) * window * (cutoff / num_in)
    return filters[:, None, :].to(like), half_width
