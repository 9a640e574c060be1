"""`comfy.model_sampling`: parameterisations and noise schedules."""

from __future__ import annotations

from engine.diffusion.model_sampling import X0, Edm, Eps, VPrediction
from engine.diffusion.model_sampling import ContinuousEdmSchedule as ModelSamplingContinuousEDM
from engine.diffusion.model_sampling import ContinuousVSchedule as ModelSamplingContinuousV
from engine.diffusion.model_sampling import DiscreteSchedule as ModelSamplingDiscrete
from engine.diffusion.model_sampling import rescale_zero_terminal_snr as rescale_zero_terminal_snr_sigmas

__all__ = [
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
