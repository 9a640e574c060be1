"""Solvers of the probability-flow ODE of Karras et al. 2022, with and without fresh noise in each step.

One function each, readable against its paper; `base.py` has the form that all share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from darkroom.engine.diffusion.host_levels import of_batch, on_host
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, churn, get_ancestral_step, report, to_d
from darkroom.engine.diffusion.samplers.declaration import sampler
from darkroom.engine.diffusion.samplers.flow import ancestral, dpm_2_step, euler_step, instead


# DDIM with eta = 0 is Euler's method in sigma: Song et al. 2020 (arXiv 2010.02502), eq. 14; Karras et al. 2022,
# appendix C.3. It differs in the noise that inpainting shows outside of the mask (see `sample.sampler_object`).
@sampler("ddim", evaluations_per_step=1, deterministic=True)
@sampler("euler", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_euler(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = float("inf"),
    s_noise: float = 1.0,
) -> torch.Tensor:
    """Sample by Euler's method: Karras et al. 2022, algorithm 2 without its second-order correction."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        x, sigma_hat = churn(x, sigmas[i], len(sigmas) - 1, s_churn, s_tmin, s_tmax, s_noise)
        denoised = model(x, of_batch(sigma_hat, ones), **extra_args)
        d = to_d(x, sigma_hat, denoised)
        report(callback, i, x, sigmas[i], sigma_hat, denoised)
        x = x + d * (sigmas[i + 1] - sigma_hat)
    return x


def euler_ancestral_step(
    x: torch.Tensor, denoised: torch.Tensor, sigma: torch.Tensor, sigma_down: torch.Tensor, noise: torch.Tensor,
    sigma_up: torch.Tensor | float, s_noise: float,
) -> torch.Tensor:  # fmt: skip
    """Return x after an Euler step down to `sigma_down` above 0, with the noise that brings it up again."""
    d = to_d(x, sigma, denoised)
    return x + d * (sigma_down - sigma) + noise * s_noise * sigma_up


@sampler("euler_ancestral", evaluations_per_step=1, deterministic=False, flow=instead(ancestral(euler_step)))
@torch.no_grad()
def sample_euler_ancestral(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by Euler steps to below the next level, then noise up to it (k-diffusion; DDPM's ancestral sampling)."""
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        sigma_down, sigma_up = get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigma_down == 0:
            x = denoised
        else:
            noise = noise_sampler(sigmas[i], sigmas[i + 1])
            x = euler_ancestral_step(x, denoised, sigmas[i], sigma_down, noise, sigma_up, s_noise)
    return x


@sampler("heun", evaluations_per_step=2, deterministic=True)
@torch.no_grad()
def sample_heun(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = float("inf"),
    s_noise: float = 1.0,
) -> torch.Tensor:
    """Sample by Heun's second-order method: Karras et al. 2022, algorithm 2."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        x, sigma_hat = churn(x, sigmas[i], len(sigmas) - 1, s_churn, s_tmin, s_tmax, s_noise)
        denoised = model(x, of_batch(sigma_hat, ones), **extra_args)
        d = to_d(x, sigma_hat, denoised)
        report(callback, i, x, sigmas[i], sigma_hat, denoised)
        dt = sigmas[i + 1] - sigma_hat
        if sigmas[i + 1] == 0:
            x = x + d * dt
        else:
            x_2 = x + d * dt
            denoised_2 = model(x_2, of_batch(sigmas[i + 1], ones), **extra_args)
            d_2 = to_d(x_2, sigmas[i + 1], denoised_2)
            x = x + (d + d_2) / 2 * dt
    return x


@sampler("dpm_2", evaluations_per_step=2, deterministic=True)
@torch.no_grad()
def sample_dpm_2(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = float("inf"),
    s_noise: float = 1.0,
) -> torch.Tensor:
    """Sample by the midpoint method in log sigma: DPM-Solver-2 (Lu et al. 2022, arXiv 2206.00927), Karras' churn."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        x, sigma_hat = churn(x, sigmas[i], len(sigmas) - 1, s_churn, s_tmin, s_tmax, s_noise)
        denoised = model(x, of_batch(sigma_hat, ones), **extra_args)
        d = to_d(x, sigma_hat, denoised)
        report(callback, i, x, sigmas[i], sigma_hat, denoised)
        if sigmas[i + 1] == 0:
            x = x + d * (sigmas[i + 1] - sigma_hat)
        else:
            sigma_mid = sigma_hat.log().lerp(sigmas[i + 1].log(), 0.5).exp()
            x_2 = x + d * (sigma_mid - sigma_hat)
            denoised_2 = model(x_2, of_batch(sigma_mid, ones), **extra_args)
            d_2 = to_d(x_2, sigma_mid, denoised_2)
            x = x + d_2 * (sigmas[i + 1] - sigma_hat)
    return x


@sampler("dpm_2_ancestral", evaluations_per_step=2, deterministic=False, flow=instead(ancestral(dpm_2_step)))
@torch.no_grad()
def sample_dpm_2_ancestral(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by `sample_dpm_2` to below the next level, then fresh noise up to it (k-diffusion)."""
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        sigma_down, sigma_up = get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        d = to_d(x, sigmas[i], denoised)
        if sigma_down == 0:
            x = x + d * (sigma_down - sigmas[i])
        else:
            sigma_mid = sigmas[i].log().lerp(sigma_down.log(), 0.5).exp()
            x_2 = x + d * (sigma_mid - sigmas[i])
            denoised_2 = model(x_2, of_batch(sigma_mid, ones), **extra_args)
            d_2 = to_d(x_2, sigma_mid, denoised_2)
            x = x + d_2 * (sigma_down - sigmas[i])
            x = x + noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * sigma_up
    return x


def linear_multistep_coefficient(order: int, t: Sequence[float], i: int, j: int) -> float:
    """Integrate over [t_i, t_i+1] the Lagrange polynomial that is 1 at t_(i-j), 0 at the other t_(i-k).

    Gauss-Legendre quadrature of `order` nodes, exact for these polynomials.
    """
    nodes, weights = np.polynomial.legendre.leggauss(order)
    half = (t[i + 1] - t[i]) / 2
    at = t[i] + half * (nodes + 1)
    product = np.ones_like(at)
    for k in range(order):
        if k != j:
            product *= (at - t[i - k]) / (t[i - j] - t[i - k])
    return float(half * (weights * product).sum())


@sampler("lms", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_lms(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    order: int = 4,
) -> torch.Tensor:
    """Sample by Adams-Bashforth over uneven levels (LMS): PLMS of Liu et al. 2022 (arXiv 2202.09778) in sigma."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    levels: list[float] = on_host(sigmas.detach()).tolist()
    derivatives: list[torch.Tensor] = []
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        derivatives = (
            [*derivatives[-(order - 1) :], to_d(x, sigmas[i], denoised)]
            if order > 1
            else [to_d(x, sigmas[i], denoised)]
        )
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if levels[i + 1] == 0:
            x = denoised
        else:
            current = min(i + 1, order)
            coefficients = [linear_multistep_coefficient(current, levels, i, j) for j in range(current)]
            x = x + sum(factor * d for factor, d in zip(coefficients, reversed(derivatives), strict=False))
    return x


def dpmpp_2m_factors(
    sigma_before: torch.Tensor, sigma: torch.Tensor, sigma_next: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the factors of a step to `sigma_next`: of x, of the estimate, and half the ratio of steps, 1 / (2 r)."""
    t, t_next = sigma.log().neg(), sigma_next.log().neg()
    h = t_next - t
    r = (t - sigma_before.log().neg()) / h
    return t_next.neg().exp() / t.neg().exp(), (-h).expm1(), 1 / (2 * r)


def dpmpp_2m_step(
    x: torch.Tensor, denoised: torch.Tensor, previous: torch.Tensor | None, decay: torch.Tensor, gain: torch.Tensor,
    share: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return x at the next level by `dpmpp_2m_factors`; of first order without `previous`, the prediction before."""
    estimate = denoised if previous is None else (1 + share) * denoised - share * previous
    return decay * x - gain * estimate


@sampler("dpmpp_2m", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_dpmpp_2m(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
) -> torch.Tensor:
    """Sample by DPM-Solver++(2M): Lu et al. 2022 (arXiv 2211.01095), alg. 2, with lambda = -log sigma, alpha = 1."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    previous: torch.Tensor | None = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        known = None if previous is None or sigmas[i + 1] == 0 else previous
        x = dpmpp_2m_step(x, denoised, known, *dpmpp_2m_factors(sigmas[i - 1], sigmas[i], sigmas[i + 1]))
        previous = denoised
    return x
