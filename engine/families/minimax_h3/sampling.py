"""Noise levels of a video with audio, each of which has a shift of its own."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.model_sampling_variants import Flow

VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
MULTIPLIER = 1000.0


def shifted_again(sigma: torch.Tensor, shift: float, other: float) -> torch.Tensor:
    """Return noise levels under another shift: those at the same times of the flow (Esser et al. 2024, eq. 23)."""
    time = sigma / (shift + sigma * (1.0 - shift))
    return other * time / (1.0 + (other - 1.0) * time)


class AudioVideoFlow(Flow):
    """A flow of both streams at the video's noise levels.

    The sampler carries the audio times sigma over the audio's own sigma. Then it is a latent of the same flow whose
    clean end is `audio_scale` times as loud, and every sampler serves both.
    """

    def __init__(self, shift: float, audio_shift: float, multiplier: float = MULTIPLIER) -> None:
        super().__init__(shift, multiplier)
        self.audio_shift = audio_shift

    @property
    def audio_scale(self) -> float:
        """Factor of the clean audio."""
        return self.shift / self.audio_shift


def audio_video_flow_of(config: Any) -> AudioVideoFlow:
    """Make the flow of a model's `sampling_settings`: `shift` of the video's levels, `audio_shift` of the audio's."""
    settings = config.sampling_settings
    return AudioVideoFlow(float(settings.get("shift", VIDEO_SHIFT)), float(settings.get("audio_shift", AUDIO_SHIFT)))
