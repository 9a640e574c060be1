"""Samplers with CFG++ (Chung et al. 2024, arXiv 2406.08070): the step's noise is that of the unconditional prediction.

Guidance tells both predictions through a function put behind it (`sampler_post_cfg_function`), which also keeps the
unconditional one from being left out at a scale of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.flow_levels import noise_scale_of
from darkroom.engine.diffusion.host_levels import of_batch
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs, Options
from darkroom.engine.diffusion.samplers.base import (
    ModelFunction,
    StepCallback,
    get_ancestral_step,
    report,
    to_d,
)
from darkroom.engine.diffusion.samplers.declaration import sampler
from darkroom.engine.diffusion.samplers.flow import instead


class UnconditionalWatch:
    """The unconditional prediction `[B, C, h, w]` of the network's last call."""

    def __init__(self, extra_args: ExtraArgs | None) -> None:
        options = dict((extra_args or {}).get("model_options", {}))
        options["sampler_post_cfg_function"] = [*options.get("sampler_post_cfg_function", []), self._see]
        options["disable_cfg1_optimization"] = True
        self.extra_args: dict[str, Any] = {**(extra_args or {}), "model_options": options}
        self.denoised = torch.empty(0)

    def _see(self, args: Options) -> torch.Tensor:
        self.denoised = args["uncond_denoised"]
        denoised: torch.Tensor = args["denoised"]
        return denoised


@torch.no_grad()
def sample_euler_ancestral_cfg_pp_flow(
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
    """Sample by Euler's method with CFG++; how far down and up is reckoned in the ratio of noise to signal."""
    uncond = UnconditionalWatch(extra_args)
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=uncond.extra_args.get("seed"))
    s_noise = s_noise * noise_scale_of(model)
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **uncond.extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        signal, next_signal = 1 - sigmas[i], 1 - sigmas[i + 1]
        d = to_d(x, sigmas[i], signal * uncond.denoised)
        down, up = get_ancestral_step(sigmas[i] / signal, sigmas[i + 1] / next_signal, eta=eta)
        x = next_signal * (denoised + down * d)
        if eta > 0 and s_noise > 0:
            x = x + next_signal * noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * up
    return x


@torch.no_grad()
def sample_euler_cfg_pp_flow(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
) -> torch.Tensor:
    """Sample by `sample_euler_ancestral_cfg_pp_flow` without noise."""
    return sample_euler_ancestral_cfg_pp_flow(model, x, sigmas, extra_args, callback, disable, eta=0.0, s_noise=0.0)


@sampler(
    "euler_ancestral_cfg_pp",
    evaluations_per_step=1,
    deterministic=False,
    flow=instead(sample_euler_ancestral_cfg_pp_flow),
)
@torch.no_grad()
def sample_euler_ancestral_cfg_pp(
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
    """Sample by Euler's method with CFG++, to below the next level, then fresh noise up to it."""
    uncond = UnconditionalWatch(extra_args)
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=uncond.extra_args.get("seed"))
    s_noise = s_noise * noise_scale_of(model)
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **uncond.extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
        else:
            sigma_down, sigma_up = get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
            x = denoised + to_d(x, sigmas[i], uncond.denoised) * sigma_down
            if eta > 0 and s_noise > 0:
                x = x + noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * sigma_up
    return x


@sampler("euler_cfg_pp", evaluations_per_step=1, deterministic=True, flow=instead(sample_euler_cfg_pp_flow))
@torch.no_grad()
def sample_euler_cfg_pp(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
) -> torch.Tensor:
    """Sample by `sample_euler_ancestral_cfg_pp` without noise: eta 0 makes the two the same method."""
    return sample_euler_ancestral_cfg_pp(model, x, sigmas, extra_args, callback, disable, eta=0.0, s_noise=0.0)


@torch.no_grad()
def sample_euler_cfg_pp_alternative(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
) -> torch.Tensor:
    """Sample by Euler steps along (x - denoised + uncond - denoised) / sigma: ComfyUI's earlier reading of CFG++."""
    uncond = UnconditionalWatch(extra_args)
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **uncond.extra_args)
        d = to_d(x - denoised + uncond.denoised, sigmas[i], denoised)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        x = x + d * (sigmas[i + 1] - sigmas[i])
    return x


@sampler("dpmpp_2s_ancestral_cfg_pp", evaluations_per_step=2, deterministic=False)
@torch.no_grad()
def sample_dpmpp_2s_ancestral_cfg_pp(
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
    """Sample by DPM-Solver++(2S), ancestral, with CFG++: x is moved by (guided - unconditional) before it decays."""
    uncond = UnconditionalWatch(extra_args)
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=uncond.extra_args.get("seed"))
    s_noise = s_noise * noise_scale_of(model)
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **uncond.extra_args)
        sigma_down, sigma_up = get_ancestral_step(sigmas[i], sigmas[i + 1], eta=eta)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigma_down == 0:
            x = denoised + to_d(x, sigmas[i], uncond.denoised) * sigma_down
        else:
            sigma_mid = (sigmas[i].log() + sigma_down.log()).div(2).exp()
            x_2 = x + (denoised - uncond.denoised)
            x_2 = sigma_mid / sigmas[i] * x_2 + (1 - sigma_mid / sigmas[i]) * denoised
            denoised_2 = model(x_2, of_batch(sigma_mid, ones), **uncond.extra_args)
            # ComfyUI takes the unconditional prediction of the second call here, the guided one of the first; kept,
            # since saved workflows show that image.
            moved = x + (denoised - uncond.denoised)
            x = sigma_down / sigmas[i] * moved + (1 - sigma_down / sigmas[i]) * denoised_2
        if sigmas[i + 1] > 0:
            x = x + noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * sigma_up
    return x


@sampler("dpmpp_2m_cfg_pp", evaluations_per_step=1, deterministic=True)
@torch.no_grad()
def sample_dpmpp_2m_cfg_pp(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: Mapping[str, object] | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
) -> torch.Tensor:
    """Sample by DPM-Solver++(2M) with CFG++."""
    uncond = UnconditionalWatch(extra_args)
    ones = x.new_ones([x.shape[0]])
    previous: torch.Tensor | None = None
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **uncond.extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        decay = sigmas[i + 1] / sigmas[i]  # exp(-h)
        mixed = -decay * uncond.denoised
        if previous is not None and sigmas[i + 1] != 0:
            h, previous_h = sigmas[i].log() - sigmas[i + 1].log(), sigmas[i - 1].log() - sigmas[i].log()
            mixed = mixed - (-h).expm1() * (h / (2 * previous_h)) * (denoised - previous)
        x = denoised + mixed + decay * x
        previous = uncond.denoised
    return x
