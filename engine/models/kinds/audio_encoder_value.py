"""AUDIO_ENCODER and AUDIO_ENCODER_OUTPUT: features of audio, by which videos move."""

from __future__ import annotations

from typing import TypedDict

import torch

from darkroom.engine.media.resample import resample
from darkroom.engine.models.network_in_use import NetworkInUse
from darkroom.engine.models.network_value import NetworkValue
from darkroom.engine.models.weight_handle import Network, WeightHandle

RATE_HZ = 16000


class AudioEncoderOutput(TypedDict):
    """Features of audio, 50 a second: the output of the last layer, and what enters each layer with it behind."""

    encoded_audio: torch.Tensor  # [B, T, D]
    encoded_audio_all_layers: tuple[torch.Tensor, ...]  # each [B, T, D]
    audio_samples: int  # of the audio at 16 kHz


def _working_bytes(network: Network, shape: torch.Size) -> int:
    num_bytes: int = network.working_bytes(shape.numel())
    return num_bytes


class AudioEncoder(NetworkValue):
    """An encoder of audio with ComfyUI's members."""

    model_sample_rate = RATE_HZ

    def __init__(self, weights: WeightHandle) -> None:
        super().__init__(weights)
        self.model = NetworkInUse(self.patcher, _working_bytes)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the layers' weights; computation is in float32."""
        dtype: torch.dtype = self.patcher.model.encoder.layer_norm.weight.dtype
        return dtype

    @torch.no_grad()
    def encode_audio(self, audio: torch.Tensor, sample_rate: int) -> AudioEncoderOutput:
        """Encode waveforms [B, C, S] of `sample_rate` Hz; output on the CPU, float32.

        Channels are averaged. Raises ValueError for audio too short for one feature.
        """
        resampled = resample(audio.float(), sample_rate, RATE_HZ)
        num_samples, least = resampled.shape[-1], self.patcher.model.least_samples
        if num_samples < least:
            raise ValueError(f"audio: too short; got {num_samples} samples at {RATE_HZ} Hz, expected at least {least}")
        states = tuple(state.to("cpu") for state in self.model(resampled.mean(dim=1).to(self.load_device)))
        return {"encoded_audio": states[-1], "encoded_audio_all_layers": states, "audio_samples": num_samples}
