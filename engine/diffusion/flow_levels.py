"""Noise levels of models that are read as a rectified flow, for their samplers."""

from __future__ import annotations

from typing import Any

import torch

FIRST_PERCENT = 1e-4  # pure noise has no ratio: the first step starts this far into the schedule instead


def model_sampling_of(model: object) -> object | None:
    """Return the parameterisation under a sampler's model; None where it is a plain function."""
    return getattr(getattr(getattr(model, "inner_model", None), "inner_model", None), "model_sampling", None)


def noise_scale_of(model: object) -> float:
    """Return the standard deviation of a flow's noise in training; 1 for all other parameterisations."""
    return float(getattr(model_sampling_of(model), "noise_scale", 1.0))


def levels_with_ratio(sigmas: torch.Tensor, model: object) -> torch.Tensor:
    """Return levels that have a signal-to-noise ratio: the first one is below 1."""
    if sigmas[0] < 1:
        return sigmas
    schedule: Any = model_sampling_of(model)
    levels = sigmas.clone()
    levels[0] = schedule.percent_to_sigma(FIRST_PERCENT)
    return levels
