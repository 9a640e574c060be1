"""`comfy.model_sampling`: parameterisations and noise schedules."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.model_sampling import X0, Edm, Eps, VPrediction
from darkroom.engine.diffusion.model_sampling import ContinuousEdmSchedule as ModelSamplingContinuousEDM
from darkroom.engine.diffusion.model_sampling import ContinuousVSchedule as ModelSamplingContinuousV
from darkroom.engine.diffusion.model_sampling import DiscreteSchedule as ModelSamplingDiscrete
from darkroom.engine.diffusion.model_sampling import rescale_zero_terminal_snr as rescale_zero_terminal_snr_sigmas
from darkroom.engine.diffusion.model_sampling_variants import RectifiedFlow as CONST

__all__ = [
    "CONST",
    "EDM",
    "EPS",
    "V_PREDICTION",
    "X0",
    "ModelSamplingContinuousEDM",
    "ModelSamplingContinuousV",
    "ModelSamplingDiscrete",
    "rescale_zero_terminal_snr_sigmas",
]

EPS = Eps
V_PREDICTION = VPrediction
EDM = Edm


def time_snr_shift(alpha: float, t: torch.Tensor) -> torch.Tensor:
    """Return times 0..1 of a flow, shifted towards noise."""
    return t if alpha == 1.0 else alpha * t / (1 + (alpha - 1) * t)
