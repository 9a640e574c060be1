"""`comfy.k_diffusion.sampling`: every sampler as `sample_<name>`, schedules, and the formulas they share."""

from __future__ import annotations

from typing import Any

import torch

from engine.diffusion.noise import default_noise_sampler
from engine.diffusion.sampler_registry import SAMPLER_FUNCTIONS
from engine.diffusion.samplers import get_ancestral_step, to_d
from engine.diffusion.sigmas import exponential, karras, laplace, polyexponential, variance_preserving

__all__ = ["append_dims", "append_zero", "default_noise_sampler", "get_ancestral_step", "get_sigmas_karras", "to_d"]

get_sigmas_exponential = exponential
get_sigmas_polyexponential = polyexponential
get_sigmas_laplace = laplace
get_sigmas_vp = variance_preserving


def __getattr__(name: str) -> Any:
    """`sample_euler` and its sisters."""
    function = SAMPLER_FUNCTIONS.get(name.removeprefix("sample_")) if name.startswith("sample_") else None
    if function is None:
        raise AttributeError(name)
    return function


def get_sigmas_karras(
    n: int, sigma_min: float, sigma_max: float, rho: float = 7.0, device: Any = "cpu"
) -> torch.Tensor:
    return karras(n, sigma_min, sigma_max, rho).to(device)


def append_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, x.new_zeros(1)))


def append_dims(x: torch.Tensor, target_dims: int) -> torch.Tensor:
    """With ones at the end of its shape."""
    return x.reshape(*x.shape, *(1,) * (target_dims - x.ndim))
