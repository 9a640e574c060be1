"""DPM-Solver++(S) with noise for models read as a rectified flow, in the arithmetic of ComfyUI.

`flow.py::by_ratio` would do but for rounding. What is left of an ancestral step, the root of target^2 - up^2,
has few bits in float32 where the step is long, and a flow's first and last steps are: both ways are some 1e-4 off the
exact result, each in its own way. Saved workflows show ComfyUI's image.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from darkroom.engine.diffusion.brownian import brownian_noise_of
from darkroom.engine.diffusion.flow_levels import levels_with_ratio, noise_scale_of
from darkroom.engine.diffusion.host_levels import of_batch
from darkroom.engine.diffusion.noise import NoiseSampler
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, get_ancestral_step, report


@torch.no_grad()
def sample_dpmpp_sde_flow(
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
    """Sample by DPM-Solver++(S) with noise: Lu et al. 2022 (arXiv 2211.01095), an inner point at `r` of each step.

    lambda is the logarithm of (1 - sigma) / sigma, alpha the signal's share 1 - sigma.
    """
    if len(sigmas) <= 1:
        return x
    options = dict(extra_args or {})
    draw = noise_sampler or brownian_noise_of(x, sigmas, options, on_cpu=noise_on_cpu)
    levels = levels_with_ratio(sigmas, model)
    s_noise = s_noise * noise_scale_of(model)
    ones = x.new_ones([x.shape[0]])
    for index in range(len(levels) - 1):
        sigma, target = levels[index], levels[index + 1]
        denoised = model(x, of_batch(sigma, ones), **options)
        report(callback, index, x, sigma, sigma, denoised)
        if target == 0:
            x = denoised
            continue
        start, end = -sigma.logit(), -target.logit()  # lambda
        alpha = sigma * start.exp()

        def step(
            level: torch.Tensor,
            there: torch.Tensor,
            seen: torch.Tensor,
            *,
            x: torch.Tensor = x,
            sigma: torch.Tensor = sigma,
            start: torch.Tensor = start,
            alpha: torch.Tensor = alpha,
        ) -> torch.Tensor:
            """Step to a level whose lambda is `there`: exponential decay to below it, then noise up to it."""
            alpha_there = level * there.exp()
            down, up = get_ancestral_step((-start).exp(), (-there).exp(), eta)
            h = -torch.as_tensor(down).log() - start
            moved = (alpha_there / alpha) * (-h).exp() * x - alpha_there * (-h).expm1() * seen
            if eta > 0 and s_noise > 0:
                moved = moved + alpha_there * draw(sigma, level) * s_noise * up
            return moved

        inner = start + r * (end - start)
        inner_level = (-inner).sigmoid()
        denoised_inner = model(step(inner_level, inner, denoised), of_batch(inner_level, ones), **options)
        share = 1 / (2 * r)
        x = step(target, end, (1 - share) * denoised + share * denoised_inner)
    return x
