"""`comfy_extras.nodes_audio`: audio read from files and brought to one sample rate."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from darkroom.engine.media.audio_files import as_float, read_audio
from darkroom.engine.media.resample import resample
from darkroom.engine.nodes.running_call import running_context

f32_pcm = as_float


def load(filepath: str) -> tuple[torch.Tensor, int]:
    """Return the first audio of a file: waveform [C, S] and its sample rate in Hz."""
    context = running_context()
    free_bytes = sys.maxsize if context is None or context.files is None else context.files.free_bytes()
    return read_audio(Path(filepath), free_bytes)


def match_audio_sample_rates(
    waveform_1: torch.Tensor, sample_rate_1: int, waveform_2: torch.Tensor, sample_rate_2: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return both waveforms at the higher of their sample rates, and that rate in Hz."""
    rate_hz = max(sample_rate_1, sample_rate_2)
    return resample(waveform_1, sample_rate_1, rate_hz), resample(waveform_2, sample_rate_2, rate_hz), rate_hz
