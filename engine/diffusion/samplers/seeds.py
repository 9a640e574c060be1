"""Stochastic exponential solvers without derivatives (SEEDS) of two and three stages, and Heun's exponential form.

As in `sde.py`, lambda = -log sigma, every alpha of the paper is 1, and `h` is a step in lambda.
"""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.host_levels import of_batch
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, report
from darkroom.engine.diffusion.samplers.declaration import sampler
from darkroom.engine.diffusion.samplers.flow import by_ratio


def _carried(noise: torch.Tensor, log_decay: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """Decay the unit-path noise of the stage before by exp(`log_decay`), and add that of the segment since then."""
    return noise * log_decay.exp() + (-(2 * log_decay).expm1()).sqrt() * fresh


def _h_phi_2(h: torch.Tensor) -> torch.Tensor:
    """Return h phi_2(h) of exponential integrators: (e^h - 1 - h) / h."""
    return (torch.expm1(h) - h) / h


@sampler(
    "exp_heun_2_x0",
    evaluations_per_step=2,
    deterministic=True,
    flow=by_ratio(),
    eta=0.0,
    s_noise=0.0,
    r=1.0,
    solver_type="phi_2",
)
@sampler("exp_heun_2_x0_sde", evaluations_per_step=2, deterministic=False, flow=by_ratio(), r=1.0, solver_type="phi_2")
@sampler("seeds_2", evaluations_per_step=2, deterministic=False, flow=by_ratio())
@torch.no_grad()
def sample_seeds_2(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    r: float = 0.5,
    solver_type: str = "phi_1",
) -> torch.Tensor:
    """Sample by SEEDS-2: Gonzalez et al. 2023 (arXiv 2305.14267), data prediction; second stage at `r` of the step.

    With the solver `phi_2` and `r` 1 this is the exponential form of Heun's method (Hochbruck and Ostermann 2010, table
    5.3), with noise by `eta`.
    """
    if solver_type not in ("phi_1", "phi_2"):
        raise ValueError(f"solver_type: unknown; got {solver_type!r}, expected 'phi_1' or 'phi_2'")
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    has_noise = eta > 0 and s_noise > 0
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        lambda_s, lambda_t = -sigmas[i].log(), -sigmas[i + 1].log()
        h = lambda_t - lambda_s
        h_eta = h * (eta + 1)
        sigma_1 = torch.lerp(lambda_s, lambda_t, r).neg().exp()

        x_2 = sigma_1 / sigmas[i] * (-r * h * eta).exp() * x - (-r * h_eta).expm1() * denoised
        noise = torch.zeros_like(x)
        if has_noise:
            noise = (-(-2 * r * h * eta).expm1()).sqrt() * noise_sampler(sigmas[i], sigma_1)
            x_2 = x_2 + noise * sigma_1 * s_noise
        denoised_2 = model(x_2, of_batch(sigma_1, ones), **extra_args)

        if solver_type == "phi_1":
            moved = (-h_eta).expm1() * torch.lerp(denoised, denoised_2, 1 / (2 * r))
        else:
            weight_2 = _h_phi_2(-h_eta) / r
            moved = ((-h_eta).expm1() - weight_2) * denoised + weight_2 * denoised_2
        x = sigmas[i + 1] / sigmas[i] * (-h * eta).exp() * x - moved
        if has_noise:
            noise = _carried(noise, (r - 1) * h * eta, noise_sampler(sigma_1, sigmas[i + 1]))
            x = x + noise * sigmas[i + 1] * s_noise
    return x


@sampler("seeds_3", evaluations_per_step=3, deterministic=False, flow=by_ratio())
@torch.no_grad()
def sample_seeds_3(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    r_1: float = 1 / 3,
    r_2: float = 2 / 3,
) -> torch.Tensor:
    """Sample by SEEDS-3: Gonzalez et al. 2023 (arXiv 2305.14267), data prediction; stages at `r_1` and `r_2`."""
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    has_noise = eta > 0 and s_noise > 0
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        lambda_s, lambda_t = -sigmas[i].log(), -sigmas[i + 1].log()
        h = lambda_t - lambda_s
        h_eta = h * (eta + 1)
        sigma_1 = torch.lerp(lambda_s, lambda_t, r_1).neg().exp()
        sigma_2 = torch.lerp(lambda_s, lambda_t, r_2).neg().exp()

        x_2 = sigma_1 / sigmas[i] * (-r_1 * h * eta).exp() * x - (-r_1 * h_eta).expm1() * denoised
        noise = torch.zeros_like(x)
        if has_noise:
            noise = (-(-2 * r_1 * h * eta).expm1()).sqrt() * noise_sampler(sigmas[i], sigma_1)
            x_2 = x_2 + noise * sigma_1 * s_noise
        denoised_2 = model(x_2, of_batch(sigma_1, ones), **extra_args)

        share_2 = r_2 / r_1 * _h_phi_2(-r_2 * h_eta)
        share_1 = (-r_2 * h_eta).expm1() - share_2
        x_3 = sigma_2 / sigmas[i] * (-r_2 * h * eta).exp() * x - (share_1 * denoised + share_2 * denoised_2)
        if has_noise:
            noise = _carried(noise, (r_1 - r_2) * h * eta, noise_sampler(sigma_1, sigma_2))
            x_3 = x_3 + noise * sigma_2 * s_noise
        denoised_3 = model(x_3, of_batch(sigma_2, ones), **extra_args)

        share_3 = _h_phi_2(-h_eta) / r_2
        share_1 = (-h_eta).expm1() - share_3
        x = sigmas[i + 1] / sigmas[i] * (-h * eta).exp() * x - (share_1 * denoised + share_3 * denoised_3)
        if has_noise:
            noise = _carried(noise, (r_2 - 1) * h * eta, noise_sampler(sigma_2, sigmas[i + 1]))
            x = x + noise * sigmas[i + 1] * s_noise
    return x
