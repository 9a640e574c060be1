"""`comfy.model_sampling`: parameterisations and noise schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.model_sampling import X0, Edm, Eps, VPrediction
from darkroom.engine.diffusion.model_sampling import ContinuousEdmSchedule as ModelSamplingContinuousEDM
from darkroom.engine.diffusion.model_sampling import ContinuousVSchedule as ModelSamplingContinuousV
from darkroom.engine.diffusion.model_sampling import DiscreteSchedule as ModelSamplingDiscrete
from darkroom.engine.diffusion.model_sampling import UnscaledV as V_PREDICTION_DDPM
from darkroom.engine.diffusion.model_sampling import rescale_zero_terminal_snr as rescale_zero_terminal_snr_sigmas
from darkroom.engine.diffusion.model_sampling_variants import CosmosFlow as COSMOS_RFLOW
from darkroom.engine.diffusion.model_sampling_variants import FlowSchedule, FluxSchedule
from darkroom.engine.diffusion.model_sampling_variants import ImageToImage as IMG_TO_IMG
from darkroom.engine.diffusion.model_sampling_variants import ImageToImageFlow as IMG_TO_IMG_FLOW
from darkroom.engine.diffusion.model_sampling_variants import RectifiedFlow as CONST

__all__ = [
    "CONST",
    "COSMOS_RFLOW",
    "EDM",
    "EPS",
    "IMG_TO_IMG",
    "IMG_TO_IMG_FLOW",
    "V_PREDICTION",
    "V_PREDICTION_DDPM",
    "X0",
    "ModelSamplingContinuousEDM",
    "ModelSamplingContinuousV",
    "ModelSamplingDiscrete",
    "ModelSamplingDiscreteFlow",
    "ModelSamplingFlux",
    "flux_time_shift",
    "rescale_zero_terminal_snr_sigmas",
    "time_snr_shift",
]

EPS = Eps
V_PREDICTION = VPrediction
EDM = Edm


def time_snr_shift(alpha: float, t: torch.Tensor) -> torch.Tensor:
    """Return times 0..1 of a flow, shifted towards noise."""
    return t if alpha == 1.0 else alpha * t / (1 + (alpha - 1) * t)


def flux_time_shift(mu: float, sigma: float, t: torch.Tensor) -> torch.Tensor:
    """Return times 0..1 of a flow, shifted towards noise exponentially."""
    return math.exp(mu) / (math.exp(mu) + (1 / t - 1) ** sigma)


class ModelSamplingDiscreteFlow(FlowSchedule):
    """Times of a flow with the shift of a model's configuration, from which packs make parameterisations."""

    def __init__(self, model_config: object = None) -> None:
        settings = _settings(model_config)
        shift, multiplier = settings.get("shift", 1.0), settings.get("multiplier", 1000)
        super().__init__(shift, multiplier)
        self.set_noise_scale(settings.get("noise_scale", 1.0))
        self.set_parameters(shift=shift, multiplier=multiplier)

    def set_parameters(self, shift: float = 1.0, timesteps: int = 1000, multiplier: float = 1000) -> None:
        """Set shift, number of levels, and what the network takes for a time of 1."""
        self.shift, self.multiplier = shift, multiplier
        self.sigmas = time_snr_shift(shift, torch.arange(1, timesteps + 1) / timesteps)

    def set_noise_scale(self, noise_scale: float) -> None:
        """Set the standard deviation of the noise in training."""
        self.noise_scale = float(noise_scale)


class ModelSamplingFlux(FluxSchedule):
    """Times of a flow with the exponential shift of a model's configuration."""

    def __init__(self, model_config: object = None) -> None:
        shift = _settings(model_config).get("shift", 1.15)
        super().__init__(shift)
        self.set_parameters(shift=shift)

    def set_parameters(self, shift: float = 1.15, timesteps: int = 10000) -> None:
        """Set shift and number of levels."""
        self.shift = shift
        self.sigmas = flux_time_shift(shift, 1.0, torch.arange(1, timesteps + 1) / timesteps)


def _settings(model_config: object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(model_config, "sampling_settings", {})
    return found
