"""Schedules: how many noise levels, and which, a sampler visits.

Each gives a float32 tensor of falling sigmas that ends in 0: `steps + 1` of them, except where a docstring says
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch


class Levels(Protocol):
    """Parameterisation of a model as schedules use it (`model_sampling.py`)."""

    sigmas: torch.Tensor

    @property
    def sigma_min(self) -> torch.Tensor: ...

    @property
    def sigma_max(self) -> torch.Tensor: ...

    def timestep(self, sigma: torch.Tensor) -> torch.Tensor: ...

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor: ...


def karras(n: int, sigma_min: float, sigma_max: float, rho: float = 7.0) -> torch.Tensor:
    """Karras et al. 2022 (arXiv 2206.00364), eq. 5: evenly spaced in sigma^(1/rho)."""
    ramp = torch.linspace(0, 1, n)
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return _ending_in_zero((high + ramp * (low - high)) ** rho)


def exponential(n: int, sigma_min: float, sigma_max: float) -> torch.Tensor:
    """Return levels evenly spaced in log sigma."""
    return _ending_in_zero(torch.linspace(math.log(sigma_max), math.log(sigma_min), n).exp())


def polyexponential(n: int, sigma_min: float, sigma_max: float, rho: float = 1.0) -> torch.Tensor:
    """Return levels by a power of the ramp in log sigma (k-diffusion); with `rho` 1 this is `exponential`."""
    ramp = torch.linspace(1, 0, n) ** rho
    low, high = math.log(sigma_min), math.log(sigma_max)
    return _ending_in_zero((ramp * (high - low) + low).exp())


def variance_preserving(n: int, beta_d: float = 19.9, beta_min: float = 0.1, eps_s: float = 1e-3) -> torch.Tensor:
    """Return the levels of the VP SDE of Song et al. 2021 (arXiv 2011.13456), times evenly spaced from 1 to `eps_s`."""
    t = torch.linspace(1, eps_s, n)
    return _ending_in_zero(torch.expm1(beta_d * t**2 / 2 + beta_min * t).sqrt())


def laplace(n: int, sigma_min: float, sigma_max: float, mu: float = 0.0, beta: float = 0.5) -> torch.Tensor:
    """Hang et al. 2024 (arXiv 2407.03297): log sigma at even shares of a Laplace distribution.

    `n` levels that do not end in 0: odd, but ComfyUI's.
    """
    share = torch.linspace(0, 1, n)
    log_sigma = mu - beta * torch.sign(0.5 - share) * torch.log(1 - 2 * torch.abs(0.5 - share) + 1e-5)
    return log_sigma.exp().clamp(min=sigma_min, max=sigma_max)


def turbo(levels: Levels, steps: int, denoise: float = 1.0) -> torch.Tensor:
    """Sauer et al. 2023 (SD-Turbo, arXiv 2311.17042): timesteps 999, 899... that the student was trained on.

    `denoise` leaves out the first tenths; at most ten steps are left.
    """
    first = 10 - int(10 * denoise)
    timesteps = torch.arange(10, 0, -1)[first : first + steps] * 100 - 1
    return _ending_in_zero(levels.sigma(timesteps))


def kl_optimal(n: int, sigma_min: float, sigma_max: float) -> torch.Tensor:
    """Sabour et al. 2024 (Align Your Steps, arXiv 2404.14507), theorem 3.1: evenly spaced in atan sigma.

    A single step divides by zero in ComfyUI and gives nan; here it is the highest level.
    """
    share = torch.arange(n, dtype=torch.float) / max(n - 1, 1)
    return _ending_in_zero((share * math.atan(sigma_min) + (1 - share) * math.atan(sigma_max)).tan())


def simple(levels: Levels, steps: int) -> torch.Tensor:
    """Return every N/steps-th trained level from the top."""
    stride = len(levels.sigmas) / steps
    return torch.FloatTensor([*(float(levels.sigmas[-(1 + int(i * stride))]) for i in range(steps)), 0.0])


def ddim_uniform(levels: Levels, steps: int) -> torch.Tensor:
    """Song et al. 2020 (DDIM, arXiv 2010.02502): every (N // steps)-th trained level from the second up.

    When N is not a multiple of `steps` there are more levels than asked for. A model whose second level is 0 has its
    own end, and one more step is counted.
    """
    own_end = math.isclose(float(levels.sigmas[1]), 0, abs_tol=0.00001)
    stride = max(len(levels.sigmas) // (steps + 1 if own_end else steps), 1)
    rising = [float(levels.sigmas[i]) for i in range(1, len(levels.sigmas), stride)]
    return torch.FloatTensor((rising if own_end else [0.0, *rising])[::-1])


def normal(levels: Levels, steps: int) -> torch.Tensor:
    """Return levels evenly spaced in timesteps, from the first to the last."""
    start, end = levels.timestep(levels.sigma_max), levels.timestep(levels.sigma_min)
    own_end = math.isclose(float(levels.sigma(end)), 0, abs_tol=0.00001)
    timesteps = torch.linspace(float(start), float(end), steps + 1 if own_end else steps)
    sigmas = [float(levels.sigma(timestep)) for timestep in timesteps]
    return torch.FloatTensor(sigmas if own_end else [*sigmas, 0.0])


def sgm_uniform(levels: Levels, steps: int) -> torch.Tensor:
    """Return levels evenly spaced in timesteps without the last (stability.ai's generative-models)."""
    start, end = levels.timestep(levels.sigma_max), levels.timestep(levels.sigma_min)
    timesteps = torch.linspace(float(start), float(end), steps + 1)[:-1]
    return torch.FloatTensor([*(float(levels.sigma(timestep)) for timestep in timesteps), 0.0])


def linear_quadratic(levels: Levels, steps: int, threshold_noise: float = 0.025) -> torch.Tensor:
    """Polyak et al. 2024 (Movie Gen, arXiv 2410.13720): small even steps first, then quadratically growing ones."""
    if steps == 1:
        return torch.FloatTensor([1.0, 0.0]) * levels.sigma_max.cpu()
    linear_steps = steps // 2
    quadratic_steps = steps - linear_steps
    excess = linear_steps - threshold_noise * steps
    quadratic = excess / (linear_steps * quadratic_steps**2)
    slope = threshold_noise / linear_steps - 2 * excess / quadratic_steps**2
    constant = quadratic * linear_steps**2
    done = [i * threshold_noise / linear_steps for i in range(linear_steps)]
    done += [quadratic * i**2 + slope * i + constant for i in range(linear_steps, steps)]
    return torch.FloatTensor([1.0 - share for share in [*done, 1.0]]) * levels.sigma_max.cpu()


def beta(levels: Levels, steps: int, alpha: float = 0.6, beta: float = 0.6) -> torch.Tensor:
    """Return the levels of timesteps at even shares of a Beta distribution, denser towards both ends.

    Lee et al. 2024 (Beta Sampling is All You Need, arXiv 2407.12173). Levels of one timestep are visited once, so
    that there may be fewer.
    """
    from scipy.special import betaincinv  # type: ignore[import-untyped]  # only this schedule needs it

    shares = 1 - torch.arange(steps, dtype=torch.float64) / steps
    timesteps = (torch.from_numpy(betaincinv(alpha, beta, shares.numpy())) * (len(levels.sigmas) - 1)).round()
    return torch.FloatTensor([*(float(levels.sigmas[int(t)]) for t in torch.unique_consecutive(timesteps)), 0.0])


def _ending_in_zero(sigmas: torch.Tensor) -> torch.Tensor:
    return torch.cat([sigmas, sigmas.new_zeros([1])])


class Schedule(NamedTuple):
    """With `use_ms` called (levels, steps), without it (n=, sigma_min=, sigma_max=): ComfyUI's `SchedulerHandler`."""

    handler: Callable[..., torch.Tensor]
    use_ms: bool = True


SCHEDULES: dict[str, Schedule] = {
    "simple": Schedule(simple),
    "sgm_uniform": Schedule(sgm_uniform),
    "karras": Schedule(karras, use_ms=False),
    "exponential": Schedule(exponential, use_ms=False),
    "ddim_uniform": Schedule(ddim_uniform),
    "beta": Schedule(beta),
    "normal": Schedule(normal),
    "linear_quadratic": Schedule(linear_quadratic),
    "kl_optimal": Schedule(kl_optimal, use_ms=False),
}
