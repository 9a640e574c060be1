"""Samplers that remember: multistep methods over the derivatives or predictions of earlier steps.

As in `samplers.py`, x is `[B, C, h, w]` in sigma space; d = (x - denoised) / sigma, lambda = -log sigma.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.flow_levels import noise_scale_of
from darkroom.engine.diffusion.host_levels import of_batch, on_host
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.samplers.base import (
    ModelFunction,
    StepCallback,
    churn,
    get_ancestral_step,
    report,
    to_d,
)
from darkroom.engine.diffusion.samplers.cfg_pp import UnconditionalWatch
from darkroom.engine.diffusion.samplers.declaration import sampler


@sampler("heunpp2", evaluations_per_step=3, deterministic=True)
@torch.no_grad()
def sample_heunpp2(
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
    """Sample by Heun++ (Carzit's sd-webui-samplers-scheduler): up to three derivatives ahead, weighted by level."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    last = sigmas[-1]
    for i in range(len(sigmas) - 1):
        x, sigma_hat = churn(x, sigmas[i], len(sigmas) - 1, s_churn, s_tmin, s_tmax, s_noise)
        denoised = model(x, of_batch(sigma_hat, ones), **extra_args)
        d = to_d(x, sigma_hat, denoised)
        report(callback, i, x, sigmas[i], sigma_hat, denoised)
        dt = sigmas[i + 1] - sigma_hat
        if sigmas[i + 1] == last:
            x = x + d * dt
            continue
        x_2 = x + d * dt
        d_2 = to_d(x_2, sigmas[i + 1], model(x_2, of_batch(sigmas[i + 1], ones), **extra_args))
        if sigmas[i + 2] == last:
            w_2 = sigmas[i + 1] / (2 * sigmas[0])
            x = x + (d * (1 - w_2) + d_2 * w_2) * dt
        else:
            x_3 = x_2 + d_2 * (sigmas[i + 2] - sigmas[i + 1])
            d_3 = to_d(x_3, sigmas[i + 2], model(x_3, of_batch(sigmas[i + 2], ones), **extra_args))
            w_2, w_3 = sigmas[i + 1] / (3 * sigmas[0]), sigmas[i + 2] / (3 * sigmas[0])
            x = x + (d * (1 - w_2 - w_3) + d_2 * w_2 + d_3 * w_3) * dt
    return x


# Adams-Bashforth weights of even steps, newest derivative first, by order.
ADAMS_BASHFORTH = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))


@sampler("ipndm", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_ipndm(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    max_order: int = 4,
) -> torch.Tensor:
    """Sample by iPNDM: Zhang and Chen 2022 (arXiv 2204.13902), appendix; Adams-Bashforth as if the steps were even."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    derivatives: list[torch.Tensor] = []  # newest first
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        derivatives = [to_d(x, sigmas[i], denoised), *derivatives][:max_order]
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            weights = ADAMS_BASHFORTH[len(derivatives) - 1]
            slope = sum(weight * d for weight, d in zip(weights, derivatives, strict=True))
            x = x + (sigmas[i + 1] - sigmas[i]) * slope
    return x


def _ipndm_v_weights(steps: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return weights of derivatives, newest first, for step lengths newest first (as many as there are derivatives).

    Not those of Adams-Bashforth over uneven steps from order 3 on; they are the reference implementation's
    (zju-pi/diff-sampler), which agree with them when steps are even.
    """
    h = steps[0]
    if len(steps) == 1:
        return [torch.ones_like(h)]
    h_1 = steps[1]
    weights = [1 + h / h_1 / 2, -(h / h_1) / 2]
    if len(steps) == 2:
        return weights
    h_2 = steps[2]
    third = (1 - h / (3 * (h + h_1)) * (h * (h + h_1)) / (h_1 * (h_1 + h_2))) / 2
    weights = [weights[0] + third, weights[1] - (1 + h_1 / h_2) * third, third * h_1 / h_2]
    if len(steps) == 3:
        return weights
    h_3 = steps[3]
    fourth = (1 - h / (3 * (h + h_1))) / 2 + (1 - h / (2 * (h + h_1))) * h / (6 * (h + h_1 + h_2))
    fourth = fourth * (h * (h + h_1) * (h + h_1 + h_2)) / (h_1 * (h_1 + h_2) * (h_1 + h_2 + h_3))
    ratio = h_1 * (h_1 + h_2) / (h_2 * (h_2 + h_3))
    return [
        weights[0] + fourth,
        weights[1] - (1 + h_1 / h_2 + ratio) * fourth,
        weights[2] + (h_1 / h_2 + ratio * (1 + h_2 / h_3)) * fourth,
        -fourth * ratio * h_1 / h_2,
    ]


@sampler("ipndm_v", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_ipndm_v(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    max_order: int = 4,
) -> torch.Tensor:
    """Sample by iPNDM with weights for uneven steps (zju-pi/diff-sampler, after Zhang and Chen 2022, 2204.13902)."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    derivatives: list[torch.Tensor] = []  # newest first
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        derivatives = [to_d(x, sigmas[i], denoised), *derivatives][:max_order]
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            steps = [sigmas[i + 1 - k] - sigmas[i - k] for k in range(len(derivatives))]
            slope = sum(weight * d for weight, d in zip(_ipndm_v_weights(steps), derivatives, strict=True))
            x = x + steps[0] * slope
    return x


def deis_weights(sigmas: torch.Tensor, max_order: int, num_points: int = 10000) -> list[list[torch.Tensor]]:
    """Return the weights of tAB-DEIS (Zhang and Chen 2022, arXiv 2204.13902, eq. 15) by step, newest derivative first.

    Levels become times t of a linear VP schedule between sigma 0.002 (t = 0.001) and 80 (t = 1); the integral of each
    Lagrange polynomial times d(sigma)/dt is a sum over `num_points`. A step without enough history has none.
    """
    low, high = (torch.log(torch.tensor(sigma, dtype=torch.float32) ** 2 + 1) for sigma in (0.002, 80.0))
    slope = 2 * (low / 1e-3 - high) / (1e-3 - 1)  # beta_1 - beta_0
    start = high - 0.5 * slope  # beta_0
    levels = on_host(sigmas.detach())
    times = ((start**2 + 2 * slope * (levels**2 + 1).log()).sqrt() - start) / slope
    weights: list[list[torch.Tensor]] = []
    for i in range(len(times) - 1):
        order = min(i + 1, max_order)
        if order == 1:
            weights.append([])
            continue
        points = torch.linspace(float(times[i]), float(times[i + 1]), num_points)
        width = (times[i + 1] - times[i]) / num_points
        beta = points * slope + start
        alpha = torch.exp(-0.5 * points**2 * slope - points * start)
        speed = 0.5 * beta / torch.sqrt(alpha * (1 - alpha))
        known = [times[i - k] for k in range(order)]
        step = []
        for j in range(order):
            polynomial = torch.ones_like(points)
            for k in range(order):
                if k != j:
                    polynomial = polynomial * (points - known[k]) / (known[j] - known[k])
            step.append((speed * polynomial).sum() * width)
        weights.append(step)
    return weights


@sampler("deis", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_deis(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    max_order: int = 3,
) -> torch.Tensor:
    """Sample by tAB-DEIS: Zhang and Chen 2022 (arXiv 2204.13902), with weights from `deis_weights`."""
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    weights = deis_weights(sigmas, max_order)
    derivatives: list[torch.Tensor] = []  # newest first
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        derivatives = [to_d(x, sigmas[i], denoised), *derivatives][:max_order]
        if not weights[i] or sigmas[i + 1] <= 0:
            x = x + (sigmas[i + 1] - sigmas[i]) * derivatives[0]
        else:
            x = x + sum(weight * d for weight, d in zip(weights[i], derivatives, strict=True))
    return x


def _res_multistep(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None,
    callback: StepCallback | None,
    eta: float,
    s_noise: float,
    noise_sampler: NoiseSampler | None,
    has_cfg_pp: bool,
) -> torch.Tensor:
    """Sample by RES, second order, multistep: Zhang et al. 2023 (arXiv 2308.02157), algorithm 2, ancestral by `eta`."""
    uncond = UnconditionalWatch(extra_args) if has_cfg_pp else None
    s_noise = s_noise * noise_scale_of(model)
    extra_args = uncond.extra_args if uncond is not None else extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    previous: torch.Tensor | None = None
    previous_down: Any = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        sigma_down, sigma_up = get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        base = denoised if uncond is None else uncond.denoised
        if sigma_down == 0 or previous is None:
            x = denoised + to_d(x, sigmas[i], base) * sigma_down
        else:
            h = sigmas[i].log() - sigma_down.log()
            c_2 = (previous_down.log() - sigmas[i - 1].log()) / h
            phi_1 = torch.expm1(-h) / -h
            phi_2 = (phi_1 - 1.0) / -h
            b_1 = torch.nan_to_num(phi_1 - phi_2 / c_2, nan=0.0)
            b_2 = torch.nan_to_num(phi_2 / c_2, nan=0.0)
            moved = x + (denoised - base)
            x = (-h).exp() * moved + h * (b_1 * base + b_2 * previous)
        if sigmas[i + 1] > 0 and eta > 0:
            x = x + noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * sigma_up
        previous, previous_down = base, sigma_down
    return x


@sampler("res_multistep", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_res_multistep(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by RES multistep (arXiv 2308.02157) without noise."""
    return _res_multistep(model, x, sigmas, extra_args, callback, 0.0, s_noise, noise_sampler, False)


@sampler("res_multistep_cfg_pp", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_res_multistep_cfg_pp(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by RES multistep (arXiv 2308.02157) with CFG++ (arXiv 2406.08070)."""
    return _res_multistep(model, x, sigmas, extra_args, callback, 0.0, s_noise, noise_sampler, True)


@sampler("res_multistep_ancestral", evaluations_per_step=1, deterministic=False)
@torch.no_grad()
def sample_res_multistep_ancestral(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by RES multistep (arXiv 2308.02157) to below the next level, then fresh noise up to it."""
    return _res_multistep(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, False)


@sampler("res_multistep_ancestral_cfg_pp", evaluations_per_step=1, deterministic=False)
@torch.no_grad()
def sample_res_multistep_ancestral_cfg_pp(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by `sample_res_multistep_ancestral` with CFG++ (arXiv 2406.08070)."""
    return _res_multistep(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, True)


def _gradient_estimation(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None,
    callback: StepCallback | None,
    gamma: float,
    has_cfg_pp: bool,
) -> torch.Tensor:
    """Sample by Euler with d + (gamma - 1) (d - the d before): Permenter and Yuan 2023 (arXiv 2306.04848), alg. 2."""
    uncond = UnconditionalWatch(extra_args) if has_cfg_pp else None
    extra_args = uncond.extra_args if uncond is not None else extra_args or {}
    ones = x.new_ones([x.shape[0]])
    previous: torch.Tensor | None = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        d = to_d(x, sigmas[i], denoised if uncond is None else uncond.denoised)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            x = denoised + d * sigmas[i + 1]
            if previous is not None:
                x = x + (gamma - 1) * (d - previous) * (sigmas[i + 1] - sigmas[i])
        previous = d
    return x


@sampler("gradient_estimation", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_gradient_estimation(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    ge_gamma: float = 2.0,
) -> torch.Tensor:
    """Sample by Gradient estimation: Permenter and Yuan 2023 (arXiv 2306.04848)."""
    return _gradient_estimation(model, x, sigmas, extra_args, callback, ge_gamma, False)


@sampler("gradient_estimation_cfg_pp", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_gradient_estimation_cfg_pp(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    ge_gamma: float = 2.0,
) -> torch.Tensor:
    """Sample by Gradient estimation (arXiv 2306.04848) with CFG++ (arXiv 2406.08070)."""
    return _gradient_estimation(model, x, sigmas, extra_args, callback, ge_gamma, True)
