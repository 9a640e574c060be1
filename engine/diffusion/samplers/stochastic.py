"""Samplers that leave the path on purpose: ancestral DPM-Solver++(2S), DDPM and LCM (also with a growing image)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.flow_levels import model_sampling_of
from darkroom.engine.diffusion.host_levels import of_batch
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, get_ancestral_step, report
from darkroom.engine.diffusion.samplers.declaration import sampler
from darkroom.engine.diffusion.samplers.flow import ancestral, dpmpp_2s_step, instead


@sampler("dpmpp_2s_ancestral", evaluations_per_step=2, deterministic=False, flow=instead(ancestral(dpmpp_2s_step)))
@torch.no_grad()
def sample_dpmpp_2s_ancestral(
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
    """Sample by DPM-Solver++(2S), Lu et al. 2022 (arXiv 2211.01095), to below the next level, then noise up to it."""
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
            sigma_mid = (sigmas[i].log() + sigma_down.log()).div(2).exp()
            x_2 = sigma_mid / sigmas[i] * x + (1 - sigma_mid / sigmas[i]) * denoised
            denoised_2 = model(x_2, of_batch(sigma_mid, ones), **extra_args)
            x = sigma_down / sigmas[i] * x + (1 - sigma_down / sigmas[i]) * denoised_2
        if sigmas[i + 1] > 0:
            x = x + noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * sigma_up
    return x


@sampler("ddpm", evaluations_per_step=1, deterministic=False)
@torch.no_grad()
def sample_ddpm(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by DDPM's ancestral step: Ho et al. 2020 (arXiv 2006.11239), algorithm 2, over the levels given.

    Works on x / sqrt(1 + sigma^2), whose variance is preserved; alpha_bar = 1 / (1 + sigma^2).
    """
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        eps = (x - denoised) / sigmas[i]
        alpha_bar, alpha_bar_next = 1 / (1 + sigmas[i] ** 2), 1 / (1 + sigmas[i + 1] ** 2)
        alpha = alpha_bar / alpha_bar_next
        x = x * alpha_bar.sqrt()
        x = (x - (1 - alpha) * eps / (1 - alpha_bar).sqrt()) / alpha.sqrt()
        if sigmas[i + 1] > 0:
            variance = (1 - alpha) * (1 - alpha_bar_next) / (1 - alpha_bar)
            x = x + variance.sqrt() * noise_sampler(sigmas[i], sigmas[i + 1])
            x = x / alpha_bar_next.sqrt()
    return x


def _clipped(noise: torch.Tensor, num_deviations: float) -> torch.Tensor:
    """Return noise within so many of its standard deviations; 0 leaves it as it is."""
    if num_deviations <= 0:
        return noise
    bound = num_deviations * noise.std()
    return noise.clamp(min=-bound, max=bound)


def _renoised(model: ModelFunction, denoised: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Return a prediction with noise up to `sigma`, as the model's parameterisation adds it."""
    sampling: Any = model_sampling_of(model)
    if sampling is None:
        return denoised + sigma * noise
    noised: torch.Tensor = sampling.noise_scaling(sigma, noise, denoised)
    return noised


@sampler("lcm", evaluations_per_step=1, deterministic=False)
@torch.no_grad()
def sample_lcm(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    noise_sampler: NoiseSampler | None = None,
    s_noise: float = 1.0,
    s_noise_end: float | None = None,
    noise_clip_std: float = 0.0,
) -> torch.Tensor:
    """Sample by multistep consistency: Luo et al. 2023 (arXiv 2310.04378), alg. 3: predict, noise again, repeat.

    The noise is clamped to `noise_clip_std` standard deviations (0: not at all), then scaled by `s_noise` in the first
    step and `s_noise_end` in the last, linearly between.
    """
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    last, change = len(sigmas) - 2, 0.0 if s_noise_end is None else s_noise_end - s_noise
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        x = denoised
        if sigmas[i + 1] > 0:
            noise = _clipped(noise_sampler(sigmas[i], sigmas[i + 1]), noise_clip_std)
            factor = s_noise + change * (i / last if last else 0.0)
            x = _renoised(model, denoised, noise if factor == 1.0 else noise * factor, sigmas[i + 1])
    return x


@torch.no_grad()
def sample_lcm_upscale(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    *,
    resize: Callable[[torch.Tensor, int, int], torch.Tensor],
    total_upscale: float = 2.0,
    upscale_steps: int | None = None,
) -> torch.Tensor:
    """Sample as `sample_lcm`, but let `resize(x, width, height)` enlarge predictions step by step to `total_upscale`.

    Without `upscale_steps` that takes the first half of the steps. The noise comes from torch's global generator.
    """
    extra_args = extra_args or {}
    ones = x.new_ones([x.shape[0]])
    count = max(len(sigmas) // 2 + 1, 2) if upscale_steps is None else min(upscale_steps + 1, len(sigmas) + 1)
    scales = [1.0 + i * (total_upscale - 1.0) / (count - 1) for i in range(1, count)]
    height, width = x.shape[-2:]
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        x = denoised
        if i < len(scales):
            x = resize(x, round(width * scales[i]), round(height * scales[i]))
        if sigmas[i + 1] > 0:
            x = x + sigmas[i + 1] * torch.randn_like(x)
    return x
