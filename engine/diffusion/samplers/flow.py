"""Adaptations of samplers to models read as a rectified flow: x = (1 - sigma) x0 + sigma n.

What samplers of the ODE do holds for a flow as it stands. Those that work in the signal-to-noise ratio run on
y = x / (1 - sigma), which has the form they are written for, with the level s = sigma / (1 - sigma). Ancestral ones
choose another level to step down to, so they are written here again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from darkroom.engine.diffusion.brownian import brownian_noise_sampler
from darkroom.engine.diffusion.flow_levels import levels_with_ratio, model_sampling_of, noise_scale_of
from darkroom.engine.diffusion.host_levels import of_batch, on_host
from darkroom.engine.diffusion.model_sampling_variants import RectifiedFlow
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import ExtraArgs, OptionDict
from darkroom.engine.diffusion.samplers.base import (
    ModelFunction,
    SamplerFunction,
    StepCallback,
    report,
    to_d,
)

BEFORE_NOISE = 0.9999
LAST_LEVEL = 0.001

Denoise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (x, sigma []) -> denoised
Step = Callable[[Denoise, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# (denoise, x, denoised, sigma, the level to go down to, above 0) -> x there
Adaptation = Callable[[SamplerFunction], SamplerFunction]  # of a sampler to models that are read as a flow


def or_for_flow(sampler: SamplerFunction, for_flow: SamplerFunction) -> SamplerFunction:
    """Return a sampler that is `for_flow` for models that are read as a flow, `sampler` for all others."""

    def sample(
        model: ModelFunction, x: torch.Tensor, sigmas: torch.Tensor, *args: object, **options: object
    ) -> torch.Tensor:
        chosen = for_flow if isinstance(model_sampling_of(model), RectifiedFlow) else sampler
        return chosen(model, x, sigmas, *args, **options)

    return sample


def instead(for_flow: SamplerFunction) -> Adaptation:
    """Return the adaptation that samples flows by another function."""
    return partial(or_for_flow, for_flow=for_flow)


def by_ratio(*, path_on_cpu: bool | None = None, has_tau: bool = False) -> Adaptation:
    """Return the adaptation of a sampler of the signal-to-noise ratio.

    `path_on_cpu` holds where the sampler takes its noise from a Brownian path over sigma: True for a path in the host's
    memory, False for one on the latent's device. `has_tau` means that it takes a function of sigma for the amount of
    noise.
    """
    return partial(_sampling_by_ratio, path_on_cpu=path_on_cpu, has_tau=has_tau)


def _sampling_by_ratio(sampler: SamplerFunction, *, path_on_cpu: bool | None, has_tau: bool) -> SamplerFunction:

    def for_flow(
        model: ModelFunction,
        x: torch.Tensor,
        sigmas: torch.Tensor,
        extra_args: Mapping[str, Any] | None = None,
        callback: StepCallback | None = None,
        disable: bool | None = None,
        **options: Any,
    ) -> torch.Tensor:
        if len(sigmas) <= 1:
            return x
        schedule: Any = model_sampling_of(model)
        levels = levels_with_ratio(sigmas, model)
        ratios = levels / (1 - levels)
        noise_scale = noise_scale_of(model)
        exact: dict[float, torch.Tensor] = dict(zip(ratios.tolist(), levels, strict=True))

        def sigma_of(ratio: object) -> torch.Tensor:
            asked: torch.Tensor = torch.as_tensor(ratio, dtype=ratios.dtype, device=ratios.device)
            return exact.get(float(asked), asked / (1 + asked))

        def denoise(y: torch.Tensor, ratio: torch.Tensor, **args: object) -> torch.Tensor:
            sigma = sigma_of(on_host(ratio)[0])
            return model(y * (1 - sigma), of_batch(sigma, torch.ones_like(ratio)), **args)

        denoise.inner_model = model.inner_model  # type: ignore[attr-defined]

        def tell(step: OptionDict) -> None:
            sigma = sigma_of(step["sigma"])
            report(callback, step["i"], step["x"] * (1 - sigma), sigma, sigma, step["denoised"])

        draw = options.pop("noise_sampler", None)
        if draw is None and path_on_cpu is not None:
            seed = (extra_args or {}).get("seed")
            draw = brownian_noise_sampler(x, sigmas[sigmas > 0].min(), sigmas.max(), seed, on_cpu=path_on_cpu)
        if draw is not None:
            options["noise_sampler"] = lambda first, second: draw(sigma_of(first), sigma_of(second))
        if noise_scale != 1.0:  # the sampler itself meets a model without one
            options["s_noise"] = options.get("s_noise", 1.0) * noise_scale
        if has_tau:
            options["tau_func"] = _tau_of_ratio(options.get("tau_func"), schedule, sigma_of)
        y = sampler(denoise, x / (1 - levels[0]), ratios, extra_args, tell, disable, **options)
        return y * (1 - levels[-1])

    return or_for_flow(sampler, for_flow)


def _tau_of_ratio(
    tau: Callable[[Any], float] | None, schedule: Any, sigma_of: Callable[[Any], torch.Tensor]
) -> Callable[[Any], float]:
    def of_ratio(ratio: object) -> float:
        sigma = sigma_of(ratio)
        if tau is not None:
            return tau(sigma)
        return float(schedule.percent_to_sigma(0.8) <= sigma <= schedule.percent_to_sigma(0.2))

    return of_ratio


def ancestral_step(
    sigma: torch.Tensor, target: torch.Tensor, eta: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (level to step down to, factor of what is there, strength of fresh noise) on the way to `target`."""
    down = target * (1 + (target / sigma - 1) * eta)
    shrink = (1 - target) / (1 - down)
    return down, shrink, (target**2 - down**2 * shrink**2) ** 0.5


def ancestral(step: Step) -> SamplerFunction:
    """Return the sampler that goes by `step` to below the next level, and is then shrunk and noised up to it."""

    @torch.no_grad()
    def sample(
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
        extra_args = extra_args or {}
        noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
        s_noise = s_noise * noise_scale_of(model)
        ones = x.new_ones([x.shape[0]])

        def denoise(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            return model(x, of_batch(sigma, ones), **extra_args)

        for i in range(len(sigmas) - 1):
            denoised = denoise(x, sigmas[i])
            report(callback, i, x, sigmas[i], sigmas[i], denoised)
            if sigmas[i + 1] == 0:
                x = denoised
                continue
            down, shrink, noise = ancestral_step(sigmas[i], sigmas[i + 1], eta)
            x = step(denoise, x, denoised, sigmas[i], down)
            if eta > 0:
                x = shrink * x + noise_sampler(sigmas[i], sigmas[i + 1]) * s_noise * noise
        return x

    return sample


def blended(first: torch.Tensor, second: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return `first` with a share [] of `second`; one of the host's memory is an argument of the kernel."""
    return torch.lerp(first, second, share if share.device == first.device else float(share))


def euler_step(
    denoise: Denoise, x: torch.Tensor, denoised: torch.Tensor, sigma: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Step by Euler's method."""
    return blended(denoised, x, down / sigma)


def dpm_2_step(
    denoise: Denoise, x: torch.Tensor, denoised: torch.Tensor, sigma: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Step by the midpoint method in log sigma."""
    middle = sigma.log().lerp(down.log(), 0.5).exp()
    x_2 = x + to_d(x, sigma, denoised) * (middle - sigma)
    return x + to_d(x_2, middle, denoise(x_2, middle)) * (down - sigma)


def dpmpp_2s_step(
    denoise: Denoise, x: torch.Tensor, denoised: torch.Tensor, sigma: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Step by DPM-Solver++(2S), by way of the middle in log ratio."""
    middle = torch.sigmoid((sigma.logit() + down.logit()) / 2)
    middle = torch.full_like(middle, BEFORE_NOISE) if sigma == 1 else middle
    return blended(denoise(blended(denoised, x, middle / sigma), middle), x, down / sigma)


def ending_above_zero(sampler: SamplerFunction) -> SamplerFunction:
    """End UniPC at `LAST_LEVEL` instead of 0, and scale up the signal that is left there, as in ComfyUI."""

    def for_flow(
        model: ModelFunction, x: torch.Tensor, sigmas: torch.Tensor, *args: object, **options: object
    ) -> torch.Tensor:
        result: torch.Tensor = sampler(model, x, sigmas, *args, **options)
        return result / (1 - LAST_LEVEL) if len(sigmas) > 1 and sigmas[-1] == 0 else result

    return or_for_flow(sampler, for_flow)
