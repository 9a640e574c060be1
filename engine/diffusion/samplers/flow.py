"""Samplers for models read as a rectified flow: x = (1 - sigma) x0 + sigma n.

What samplers of the ODE do holds for a flow as it stands. Those that work in the signal-to-noise ratio run on
y = x / (1 - sigma), which has the form they are written for, with the level s = sigma / (1 - sigma). Ancestral ones
choose another level to step down to, so they are written here again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from engine.diffusion.brownian import brownian_noise_sampler
from engine.diffusion.flow_levels import levels_with_ratio, model_sampling_of
from engine.diffusion.host_levels import of_batch, on_host
from engine.diffusion.model_sampling_variants import RectifiedFlow
from engine.diffusion.noise import NoiseSampler, default_noise_sampler
from engine.diffusion.options import ExtraArgs, OptionDict
from engine.diffusion.samplers.cfg_pp import UnconditionalWatch
from engine.diffusion.samplers.ode import ModelFunction, SamplerFunction, StepCallback, get_ancestral_step, report, to_d
from engine.diffusion.samplers.sde_flow import sample_dpmpp_sde_flow

BEFORE_NOISE = 0.9999
LAST_LEVEL = 0.001

Denoise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (x, sigma []) -> denoised
Step = Callable[[Denoise, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# (denoise, x, denoised, sigma, the level to go down to, above 0) -> x there


def or_for_flow(sampler: SamplerFunction, for_flow: SamplerFunction) -> SamplerFunction:
    """Return a sampler that is `for_flow` for models that are read as a flow, `sampler` for all others."""

    def sample(
        model: ModelFunction, x: torch.Tensor, sigmas: torch.Tensor, *args: object, **options: object
    ) -> torch.Tensor:
        chosen = for_flow if isinstance(model_sampling_of(model), RectifiedFlow) else sampler
        return chosen(model, x, sigmas, *args, **options)

    return sample


def by_ratio(sampler: SamplerFunction, *, path_on_cpu: bool | None = None, has_tau: bool = False) -> SamplerFunction:
    """Adapt a sampler of the signal-to-noise ratio to flows.

    `path_on_cpu`: it draws its noise from a Brownian path over sigma, there or on the latent's device. `has_tau`: it
    takes a function of sigma that says how much noise there is.
    """

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


@torch.no_grad()
def sample_lcm_flow(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    noise_sampler: NoiseSampler | None = None,
) -> torch.Tensor:
    """Sample by Predict, noise again as the flow does, repeat."""
    extra_args = extra_args or {}
    noise_sampler = noise_sampler or default_noise_sampler(x, seed=extra_args.get("seed"))
    ones = x.new_ones([x.shape[0]])
    for i in range(len(sigmas) - 1):
        denoised = model(x, of_batch(sigmas[i], ones), **extra_args)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        x = denoised
        if sigmas[i + 1] > 0:
            x = blended(denoised, noise_sampler(sigmas[i], sigmas[i + 1]), sigmas[i + 1])
    return x


def ending_above_zero(sampler: SamplerFunction) -> SamplerFunction:
    """End UniPC at `LAST_LEVEL` instead of 0, and scale up the signal that is left there, as in ComfyUI."""

    def for_flow(
        model: ModelFunction, x: torch.Tensor, sigmas: torch.Tensor, *args: object, **options: object
    ) -> torch.Tensor:
        result: torch.Tensor = sampler(model, x, sigmas, *args, **options)
        return result / (1 - LAST_LEVEL) if len(sigmas) > 1 and sigmas[-1] == 0 else result

    return or_for_flow(sampler, for_flow)


def with_flows(samplers: Mapping[str, SamplerFunction]) -> dict[str, SamplerFunction]:
    """Return the samplers by name, adapted to flows where they need it."""
    again: dict[str, SamplerFunction] = {
        "euler_ancestral": ancestral(euler_step), "dpm_2_ancestral": ancestral(dpm_2_step),
        "dpmpp_2s_ancestral": ancestral(dpmpp_2s_step), "lcm": sample_lcm_flow,
        "dpmpp_sde": sample_dpmpp_sde_flow, "dpmpp_sde_gpu": partial(sample_dpmpp_sde_flow, noise_on_cpu=False),
        "euler_cfg_pp": sample_euler_cfg_pp_flow, "euler_ancestral_cfg_pp": sample_euler_ancestral_cfg_pp_flow,
    }  # fmt: skip
    of_path = [f"{name}{device}" for name in ("dpmpp_2m_sde", "dpmpp_2m_sde_heun", "dpmpp_3m_sde")
               for device in ("", "_gpu")]  # fmt: skip
    return {
        **samplers,
        **{name: or_for_flow(samplers[name], for_flow) for name, for_flow in again.items()},
        **{name: by_ratio(samplers[name], path_on_cpu=not name.endswith("_gpu")) for name in of_path},
        **{name: by_ratio(samplers[name]) for name in ("er_sde", "seeds_2", "seeds_3")},
        **{name: ending_above_zero(samplers[name]) for name in ("uni_pc", "uni_pc_bh2")},
        **{name: by_ratio(samplers[name], has_tau=True) for name in ("sa_solver", "sa_solver_pece")},
    }
