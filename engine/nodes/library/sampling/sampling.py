"""The nodes KSampler and KSamplerAdvanced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts, SamplerFacts
from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels, sample
from darkroom.engine.diffusion.nested_latent import first_stream
from darkroom.engine.diffusion.noise import prepare_empty_noise, prepare_noise
from darkroom.engine.diffusion.replacements import replaceable
from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.running_call import call_of, running_context
from darkroom.engine.nodes.sockets import CONDITIONING, LATENT, MODEL, Latent
from darkroom.engine.nodes.widgets import Choice, Float, Int

MAX_SEED = 0xFFFFFFFFFFFFFFFF

PreviewFunction = Callable[[torch.Tensor], tuple[object, ...]]
StepCallback = Callable[[int, torch.Tensor, torch.Tensor, int], None]  # step, denoised, x, total steps


@dataclass(frozen=True)
class SamplerChoice(Choice):
    """Samplers offered at this moment; custom nodes add to them."""

    def type_in(self, environment: NodeEnvironment) -> tuple[str, ...]:
        return tuple(environment.sampler_names())

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(sampler_input=name)

    def samplers_in(self, environment: NodeEnvironment) -> dict[str, SamplerFacts]:
        built_in = facts_of_samplers()
        return {name: built_in[name] for name in environment.sampler_names() if name in built_in}


def facts_of_samplers() -> dict[str, SamplerFacts]:
    """Return the declared facts of the built-in samplers, in the form in which other processes get them."""
    return {
        name: SamplerFacts(item.evaluations_per_step, item.is_deterministic)
        for name, item in declared_samplers().items()
    }


@dataclass(frozen=True)
class SamplerCombo(SamplerChoice):
    """`SamplerChoice` in the notation of ComfyUI's newer nodes: type `COMBO`, the names among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        return {"multiselect": False, "options": list(environment.sampler_names()), **self.extra}


@dataclass(frozen=True)
class ScheduleChoice(Choice):
    """Schedules offered at this moment; custom nodes add to them."""

    def type_in(self, environment: NodeEnvironment) -> tuple[str, ...]:
        return tuple(environment.schedule_names())


@dataclass(frozen=True)
class ScheduleCombo(ScheduleChoice):
    """`ScheduleChoice` in the notation of ComfyUI's newer nodes: type `COMBO`, the names among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        return {"multiselect": False, "options": list(environment.schedule_names()), **self.extra}


SamplerName = Annotated[str, SamplerChoice()]
SchedulerName = Annotated[str, ScheduleChoice()]


@node("KSampler", category="model/sampling", facts=NodeFacts(items="alone"))
def ksampler(
    context: NodeContext,
    *,
    model: MODEL,
    seed: Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)] = 0,
    steps: Annotated[int, Int(min=1, max=10000)] = 20,
    cfg: Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)] = 8.0,
    sampler_name: SamplerName,
    scheduler: SchedulerName,
    positive: CONDITIONING,
    negative: CONDITIONING,
    latent_image: LATENT,
    denoise: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 1.0,
) -> LATENT:
    """Uses the provided model, positive and negative conditioning to denoise the latent image."""  # noqa: D401 - ComfyUI's
    with call_of(context):
        return common_ksampler(
            model, seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise=denoise
        )[0]


@node(
    "KSamplerAdvanced",
    display_name="KSampler (Advanced)",
    category="model/sampling",
    facts=NodeFacts(items="alone"),
    advanced=("add_noise", "start_at_step", "end_at_step", "return_with_leftover_noise"),
)
def ksampler_advanced(
    context: NodeContext,
    *,
    model: MODEL,
    add_noise: Annotated[str, Choice(("enable", "disable"))],
    noise_seed: Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)] = 0,
    steps: Annotated[int, Int(min=1, max=10000)] = 20,
    cfg: Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)] = 8.0,
    sampler_name: SamplerName,
    scheduler: SchedulerName,
    positive: CONDITIONING,
    negative: CONDITIONING,
    latent_image: LATENT,
    start_at_step: Annotated[int, Int(min=0, max=10000)] = 0,
    end_at_step: Annotated[int, Int(min=0, max=10000)] = 10000,
    return_with_leftover_noise: Annotated[str, Choice(("disable", "enable"))],
) -> LATENT:
    with call_of(context):
        return common_ksampler(
            model, noise_seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image,
            disable_noise=add_noise == "disable", start_step=start_at_step, last_step=end_at_step,
            force_full_denoise=return_with_leftover_noise == "disable",
        )[0]  # fmt: skip


@replaceable
def common_ksampler(
    model: Any,
    seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Any,
    negative: Any,
    latent: Latent,
    denoise: float = 1.0,
    disable_noise: bool = False,
    start_step: int | None = None,
    last_step: int | None = None,
    force_full_denoise: bool = False,
) -> tuple[Latent]:
    """Sample a latent for both KSampler nodes, within the running call."""
    samples = fix_empty_latent_channels(
        model, latent["samples"], latent.get("downscale_ratio_spacial"), latent.get("downscale_ratio_temporal")
    )
    noise = prepare_empty_noise(samples) if disable_noise else prepare_noise(samples, seed, latent.get("batch_index"))
    result = sample(
        model, noise, steps, cfg, sampler_name, scheduler, positive, negative, samples, denoise=denoise,
        disable_noise=disable_noise, start_step=start_step, last_step=last_step, force_full_denoise=force_full_denoise,
        noise_mask=latent.get("noise_mask"), callback=prepare_callback(model, steps), seed=seed,
    )  # fmt: skip
    return (_with_samples(latent, result),)


@replaceable
def preview_function(device: torch.device, latent_format: object) -> PreviewFunction | None:
    """Return the function from the denoised latent to the arguments of `report_preview`, or None for no previews.

    This one leaves the image to the server; custom nodes put one in its place that makes it.
    """
    return lambda denoised: (denoised, latent_format)


@replaceable
def prepare_callback(model: Any, steps: int, x0_output_dict: dict[str, Any] | None = None) -> StepCallback:
    """Return a callback that reports progress of the running call after every step, which ends a cancelled run.

    Before progress it reports a preview, when one is requested; of a nested latent it is that of its video. The
    denoised latent is stored as `x0` of the dictionary.
    """
    context = running_context()
    preview = preview_function(model.load_device, model.get_model_object("latent_format"))

    def report(step: int, denoised: torch.Tensor, x: torch.Tensor, total_steps: int) -> None:
        if x0_output_dict is not None:
            x0_output_dict["x0"] = denoised
        made = None if preview is None else preview(first_stream(denoised))
        if context is None:
            return
        if made is not None and context.report_preview is not None:
            context.report_preview(*made)
        context.report_progress(step + 1, total_steps)

    return report


def _with_samples(latent: Latent, samples: torch.Tensor) -> Latent:
    """Return a latent with sampled values, whose cells are the model's."""
    changed: Any = {**latent, "samples": samples}
    for ratio in ("downscale_ratio_spacial", "downscale_ratio_temporal"):
        changed.pop(ratio, None)
    result: Latent = changed
    return result


NODES = (ksampler, ksampler_advanced)
