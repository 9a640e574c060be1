"""`comfy.k_diffusion.sampling`: every sampler as `sample_<name>`, schedules, and the formulas they share.

KSampler uses a sampler that a pack puts here, under a new name or an existing one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.comfy.torch_types import DeviceLike
from darkroom.engine.diffusion import sigmas as schedules
from darkroom.engine.diffusion.brownian import brownian_noise_sampler
from darkroom.engine.diffusion.noise import default_noise_sampler
from darkroom.engine.diffusion.samplers.base import get_ancestral_step, to_d
from darkroom.engine.diffusion.samplers.registry import declared_samplers

__all__ = ["default_noise_sampler", "get_ancestral_step", "to_d", "trange"]

trange = range  # how far sampling is, the engine tells by itself


def __getattr__(name: str) -> object:
    """Return a sampler function such as `sample_euler`."""
    declaration = declared_samplers().get(name.removeprefix("sample_")) if name.startswith("sample_") else None
    if declaration is None:
        raise AttributeError(name)
    return declaration.function


# --- two samplers that take bounds instead of levels --------------------------------------------------


def sample_dpm_fast(
    model: object,
    x: torch.Tensor,
    sigma_min: float | torch.Tensor,
    sigma_max: float | torch.Tensor,
    n: int,
    extra_args: Mapping[str, object] | None = None,
    callback: object = None,
    disable: bool | None = None,
    **options: object,
) -> torch.Tensor:
    """Sample with `n` calls of the model. Raises ValueError for a bound of 0."""
    levels = _levels(x, sigma_min, sigma_max, n)
    return declared_samplers()["dpm_fast"].function(model, x, levels, extra_args, callback, disable, **options)


def sample_dpm_adaptive(
    model: object,
    x: torch.Tensor,
    sigma_min: float | torch.Tensor,
    sigma_max: float | torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: object = None,
    disable: bool | None = None,
    *,
    return_info: bool = False,
    **options: object,
) -> torch.Tensor:
    """Sample with adaptive step sizes. Raises ValueError for a bound of 0."""
    if return_info:
        raise not_supported("comfy.k_diffusion.sampling.sample_dpm_adaptive(return_info=True)")
    levels = _levels(x, sigma_min, sigma_max, 1)
    return declared_samplers()["dpm_adaptive"].function(model, x, levels, extra_args, callback, disable, **options)


def _levels(
    x: torch.Tensor, sigma_min: float | torch.Tensor, sigma_max: float | torch.Tensor, num_steps: int
) -> torch.Tensor:
    if sigma_min <= 0 or sigma_max <= 0:
        raise ValueError("sigma_min and sigma_max must not be 0")
    bounds = torch.tensor([float(sigma_max), float(sigma_min)], device=x.device)
    return torch.cat([bounds[:1].expand(num_steps), bounds[1:]])


# --- schedules ----------------------------------------------------------------------------------------


def get_sigmas_karras(
    n: int, sigma_min: float, sigma_max: float, rho: float = 7.0, device: DeviceLike | None = "cpu"
) -> torch.Tensor:
    return schedules.karras(n, sigma_min, sigma_max, rho).to(device)


def get_sigmas_exponential(
    n: int, sigma_min: float, sigma_max: float, device: DeviceLike | None = "cpu"
) -> torch.Tensor:
    return schedules.exponential(n, sigma_min, sigma_max).to(device)


def get_sigmas_polyexponential(
    n: int, sigma_min: float, sigma_max: float, rho: float = 1.0, device: DeviceLike | None = "cpu"
) -> torch.Tensor:
    return schedules.polyexponential(n, sigma_min, sigma_max, rho).to(device)


def get_sigmas_laplace(
    n: int, sigma_min: float, sigma_max: float, mu: float = 0.0, beta: float = 0.5, device: DeviceLike | None = "cpu"
) -> torch.Tensor:
    return schedules.laplace(n, sigma_min, sigma_max, mu, beta).to(device)


def get_sigmas_vp(
    n: int, beta_d: float = 19.9, beta_min: float = 0.1, eps_s: float = 1e-3, device: DeviceLike | None = "cpu"
) -> torch.Tensor:
    return schedules.variance_preserving(n, beta_d, beta_min, eps_s).to(device)


# --- noise and shapes ---------------------------------------------------------------------------------


class BrownianTreeNoiseSampler:
    """Unit noise between two levels that is independent of the steps between; `transform` maps levels to times."""

    def __init__(
        self,
        x: torch.Tensor,
        sigma_min: Any,
        sigma_max: Any,
        seed: int | None = None,
        transform: Callable[[Any], Any] = lambda sigma: sigma,
        cpu: bool = False,
    ) -> None:
        if not isinstance(seed, int | None):
            raise not_supported("comfy.k_diffusion.sampling.BrownianTreeNoiseSampler with several seeds")
        bounds = [transform(torch.as_tensor(sigma)) for sigma in (sigma_min, sigma_max)]
        self.transform = transform
        self._draw = brownian_noise_sampler(x, bounds[0], bounds[1], seed, on_cpu=cpu)

    def __call__(self, sigma: float | torch.Tensor, sigma_next: float | torch.Tensor) -> torch.Tensor:
        return self._draw(*(self.transform(torch.as_tensor(level)) for level in (sigma, sigma_next)))


def append_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, x.new_zeros(1)))


def append_dims(x: torch.Tensor, target_dims: int) -> torch.Tensor:
    """Append dimensions of size 1 to the shape."""
    return x.reshape(*x.shape, *(1,) * (target_dims - x.ndim))
