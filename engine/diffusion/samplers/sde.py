"""Samplers of the diffusion SDE: fresh noise along a path, in half the log signal-to-noise ratio.

In sigma space the signal has scale 1, so lambda = -log sigma and every alpha of the papers is 1. `h` is a step in
lambda; with noise of strength `eta` the deterministic part goes as a step of h (1 + eta). The `_gpu` names generate
their path on the latent's device; on a CPU they give the plain ones' result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from darkroom.engine.diffusion.brownian import brownian_noise_of
from darkroom.engine.diffusion.host_levels import of_batch
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, get_ancestral_step, report
from darkroom.engine.diffusion.samplers.declaration import sampler
from darkroom.engine.diffusion.samplers.flow import by_ratio, instead
from darkroom.engine.diffusion.samplers.sde_flow import sample_dpmpp_sde_flow


@sampler(
    "dpmpp_sde_gpu",
    evaluations_per_step=2,
    deterministic=False,
    flow=instead(partial(sample_dpmpp_sde_flow, noise_on_cpu=False)),
    noise_on_cpu=False,
)
@sampler("dpmpp_sde", evaluations_per_step=2, deterministic=False, flow=instead(sample_dpmpp_sde_flow))
@torch.no_grad()
def sample_dpmpp_sde(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    r: float = 0.5,
    *,
    noise_on_cpu: bool = True,
) -> torch.Tensor:
    """Sample by DPM-Solver++(S) with noise: Lu et al. 2022 (arXiv 2211.01095), an inner point at `r` of each step."""
    if len(sigmas) <= 1:
        return x
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or brownian_noise_of(x, sigmas, extra_args, on_cpu=noise_on_cpu)
    ones = x.new_ones([x.shape[0]])
    has_noise = eta > 0 and s_noise > 0

    def step(sigma: torch.Tensor, target: torch.Tensor, x: torch.Tensor, denoised: torch.Tensor) -> torch.Tensor:
        """Step from `sigma` to `target`, ancestrally: exponential decay to below it, then noise up to it."""
        down, up = get_ancestral_step(sigma, target, eta)
        shrink = down / sigma  # exp(-h) of the deterministic part
        x = shrink * x + (1 - shrink) * denoised
        return x + noise_sampler(sigma, target) * s_noise * up if has_noise else x

    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            middle = torch.lerp(sigmas[i].log(), sigmas[i + 1].log(), r).exp()
            denoised_2 = model(step(sigmas[i], middle, x, denoised), of_batch(middle, ones), **extra_args)
            share = 1 / (2 * r)
            x = step(sigmas[i], sigmas[i + 1], x, (1 - share) * denoised + share * denoised_2)
    return x


@sampler(
    "dpmpp_2m_sde_gpu",
    evaluations_per_step=1,
    deterministic=False,
    flow=by_ratio(path_on_cpu=False),
    noise_on_cpu=False,
)
@sampler("dpmpp_2m_sde", evaluations_per_step=1, deterministic=False, flow=by_ratio(path_on_cpu=True))
@torch.no_grad()
def sample_dpmpp_2m_sde(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    solver_type: str = "midpoint",
    *,
    noise_on_cpu: bool = True,
) -> torch.Tensor:
    """Sample by SDE-DPM-Solver++(2M): Lu et al. 2022 (arXiv 2211.01095), alg. 4, closed by midpoint or Heun's rule."""
    if len(sigmas) <= 1:
        return x
    if solver_type not in ("heun", "midpoint"):
        raise ValueError(f"solver_type must be 'heun' or 'midpoint', not {solver_type!r}")
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or brownian_noise_of(x, sigmas, extra_args, on_cpu=noise_on_cpu)
    ones = x.new_ones([x.shape[0]])
    previous: torch.Tensor | None = None
    h = previous_h = sigmas.new_zeros(())
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            h = sigmas[i].log() - sigmas[i + 1].log()
            h_eta = h * (eta + 1)
            gain = -(-h_eta).expm1()
            x = sigmas[i + 1] / sigmas[i] * (-h * eta).exp() * x + gain * denoised
            if previous is not None:
                slope = (denoised - previous) * (h / previous_h)
                x = x + (0.5 * gain if solver_type == "midpoint" else 1 - gain / h_eta) * slope
            if eta > 0 and s_noise > 0:
                scale = sigmas[i + 1] * (-(-2 * h * eta).expm1()).sqrt() * s_noise
                x = x + noise_sampler(sigmas[i], sigmas[i + 1]) * scale
        previous, previous_h = denoised, h
    return x


@sampler(
    "dpmpp_2m_sde_heun_gpu",
    evaluations_per_step=1,
    deterministic=False,
    flow=by_ratio(path_on_cpu=False),
    noise_on_cpu=False,
)
@sampler("dpmpp_2m_sde_heun", evaluations_per_step=1, deterministic=False, flow=by_ratio(path_on_cpu=True))
@torch.no_grad()
def sample_dpmpp_2m_sde_heun(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    solver_type: str = "heun",
    *,
    noise_on_cpu: bool = True,
) -> torch.Tensor:
    """Sample by `sample_dpmpp_2m_sde` closed by Heun's rule."""
    return sample_dpmpp_2m_sde(
        model, x, sigmas, extra_args, callback, disable, eta, s_noise, noise_sampler, solver_type,
        noise_on_cpu=noise_on_cpu,
    )  # fmt: skip


@sampler(
    "dpmpp_3m_sde_gpu",
    evaluations_per_step=1,
    deterministic=False,
    flow=by_ratio(path_on_cpu=False),
    noise_on_cpu=False,
)
@sampler("dpmpp_3m_sde", evaluations_per_step=1, deterministic=False, flow=by_ratio(path_on_cpu=True))
@torch.no_grad()
def sample_dpmpp_3m_sde(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    *,
    noise_on_cpu: bool = True,
) -> torch.Tensor:
    """Sample by SDE-DPM-Solver++ of order 3, multistep (k-diffusion): the last predictions as a parabola in lambda."""
    if len(sigmas) <= 1:
        return x
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or brownian_noise_of(x, sigmas, extra_args, on_cpu=noise_on_cpu)
    ones = x.new_ones([x.shape[0]])
    denoised_1: torch.Tensor | None = None
    denoised_2: torch.Tensor | None = None
    h: torch.Tensor | None = None
    h_1: torch.Tensor | None = None
    h_2: torch.Tensor | None = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            h = sigmas[i].log() - sigmas[i + 1].log()
            h_eta = h * (eta + 1)
            gain = -(-h_eta).expm1()
            phi_2 = 1 - gain / h_eta
            x = sigmas[i + 1] / sigmas[i] * (-h * eta).exp() * x + gain * denoised
            if h_2 is not None and h_1 is not None and denoised_1 is not None and denoised_2 is not None:
                r_0, r_1 = h_1 / h, h_2 / h
                slope_0, slope_1 = (denoised - denoised_1) / r_0, (denoised_1 - denoised_2) / r_1
                bend = (slope_0 - slope_1) / (r_0 + r_1)
                x = x + phi_2 * (slope_0 + bend * r_0) - (phi_2 / h_eta - 0.5) * bend
            elif h_1 is not None and denoised_1 is not None:
                x = x + phi_2 * (denoised - denoised_1) * (h / h_1)
            if eta > 0 and s_noise > 0:
                scale = sigmas[i + 1] * (-(-2 * h * eta).expm1()).sqrt() * s_noise
                x = x + noise_sampler(sigmas[i], sigmas[i + 1]) * scale
        denoised_1, denoised_2 = denoised, denoised_1
        h_1, h_2 = h, h_1
    return x


def default_noise_scaler(sigma: torch.Tensor) -> torch.Tensor:
    """Return phi of ER-SDE-5 in the paper's table: the rate at which the extended SDE forgets its noise."""
    return sigma * ((sigma**0.3).exp() + 10.0)


@sampler("er_sde", evaluations_per_step=1, deterministic=False, flow=by_ratio())
@torch.no_grad()
def sample_er_sde(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    noise_scaler: Callable[[torch.Tensor], torch.Tensor] | None = None,
    max_stage: int = 3,
) -> torch.Tensor:
    """Sample by ER-SDE-Solver-3: Cui et al. 2023 (arXiv 2309.06169), algorithm 3, its integrals by 200 rectangles."""
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    scaler = noise_scaler or default_noise_scaler
    ones = x.new_ones([x.shape[0]])
    points = torch.arange(200, dtype=torch.float32, device=sigmas.device)
    previous: torch.Tensor | None = None
    previous_slope: torch.Tensor | None = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            now, then = sigmas[i], sigmas[i + 1]
            r = scaler(then) / scaler(now)
            x = r * x + (1 - r) * denoised
            if previous is not None and max_stage >= 2:
                dt = then - now
                width = -dt / len(points)
                places = then + points * width
                scaled = scaler(places)
                slope = (denoised - previous) / (now - sigmas[i - 1])
                x = x + (dt + (1 / scaled).sum() * width * scaler(then)) * slope
                if previous_slope is not None and max_stage >= 3:
                    bend = (slope - previous_slope) / ((now - sigmas[i - 2]) / 2)
                    x = x + (dt**2 / 2 + ((places - now) / scaled).sum() * width * scaler(then)) * bend
                previous_slope = slope
            if s_noise > 0:
                x = x + noise_sampler(now, then) * s_noise * (then**2 - now**2 * r**2).sqrt().nan_to_num(nan=0.0)
        previous = denoised
    return x
