"""KSampler and its advanced sister."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

import torch

from engine.diffusion.noise import prepare_noise
from engine.diffusion.sample import fix_empty_latent_channels, sample
from engine.diffusion.sampler_registry import SAMPLER_NAMES
from engine.diffusion.sigmas import SCHEDULE_NAMES
from engine.nodes.base import Choice, Float, Int, NodeContext, node
from engine.nodes.values import CONDITIONING, LATENT, MODEL, Latent

MAX_SEED = 0xFFFFFFFFFFFFFFFF


@node("KSampler", category="sampling")
def ksampler(
    context: NodeContext,
    *,
    model: MODEL,
    seed: Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)] = 0,
    steps: Annotated[int, Int(min=1, max=10000)] = 20,
    cfg: Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)] = 8.0,
    sampler_name: Annotated[str, Choice(SAMPLER_NAMES)],
    scheduler: Annotated[str, Choice(SCHEDULE_NAMES)],
    positive: CONDITIONING,
    negative: CONDITIONING,
    latent_image: LATENT,
    denoise: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 1.0,
) -> LATENT:
    """Uses the provided model, positive and negative conditioning to denoise the latent image."""
    samples = fix_empty_latent_channels(model, latent_image["samples"])
    result = sample(
        model, prepare_noise(samples, seed, latent_image.get("batch_index")), steps, cfg, sampler_name, scheduler,
        positive, negative, samples, denoise=denoise, noise_mask=latent_image.get("noise_mask"),
        callback=step_reporter(context, model), check_cancelled=context.cancel.check, seed=seed,
    )  # fmt: skip
    return _with_samples(latent_image, result)


@node("KSamplerAdvanced", display_name="KSampler (Advanced)", category="sampling")
def ksampler_advanced(
    context: NodeContext,
    *,
    model: MODEL,
    add_noise: Annotated[str, Choice(("enable", "disable"))],
    noise_seed: Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)] = 0,
    steps: Annotated[int, Int(min=1, max=10000)] = 20,
    cfg: Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)] = 8.0,
    sampler_name: Annotated[str, Choice(SAMPLER_NAMES)],
    scheduler: Annotated[str, Choice(SCHEDULE_NAMES)],
    positive: CONDITIONING,
    negative: CONDITIONING,
    latent_image: LATENT,
    start_at_step: Annotated[int, Int(min=0, max=10000)] = 0,
    end_at_step: Annotated[int, Int(min=0, max=10000)] = 10000,
    return_with_leftover_noise: Annotated[str, Choice(("disable", "enable"))],
) -> LATENT:
    samples = fix_empty_latent_channels(model, latent_image["samples"])
    if add_noise == "enable":
        noise = prepare_noise(samples, noise_seed, latent_image.get("batch_index"))
    else:
        noise = torch.zeros(samples.shape, dtype=samples.dtype)
    result = sample(
        model, noise, steps, cfg, sampler_name, scheduler, positive, negative, samples, start_step=start_at_step,
        last_step=end_at_step, force_full_denoise=return_with_leftover_noise == "disable",
        noise_mask=latent_image.get("noise_mask"), callback=step_reporter(context, model),
        check_cancelled=context.cancel.check, seed=noise_seed,
    )  # fmt: skip
    return _with_samples(latent_image, result)


class _Sampled(Protocol):
    def get_model_object(self, name: str) -> Any: ...


def step_reporter(context: NodeContext, model: _Sampled) -> Callable[[int, torch.Tensor, torch.Tensor, int], None]:
    """When asked for shows the denoised latent, and tells progress (which ends a cancelled run), after every step."""
    latent_format = model.get_model_object("latent_format")

    def report(step: int, denoised: torch.Tensor, x: torch.Tensor, total_steps: int) -> None:
        if context.report_preview is not None:
            context.report_preview(
                denoised, latent_format
            )  # before the progress: the server places it around that message
        context.report_progress(step + 1, total_steps)

    return report


def _with_samples(latent: Latent, samples: torch.Tensor) -> Latent:
    changed: Any = {**latent, "samples": samples}
    result: Latent = changed
    return result


NODES = (ksampler, ksampler_advanced)
