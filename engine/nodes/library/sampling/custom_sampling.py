"""Nodes for custom sampling, with noise, guider, sampler and sigmas as separate values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.guiders import BasicGuider, DualCfgGuider, PerpNegGuider
from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels, sample_custom
from darkroom.engine.diffusion.noise import prepare_empty_noise, prepare_noise
from darkroom.engine.diffusion.sample import Guider
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.sampling import MAX_SEED, StepCallback, prepare_callback
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.running_call import call_of
from darkroom.engine.nodes.sockets import CONDITIONING, GUIDER, LATENT, MODEL, NOISE, SAMPLER, SIGMAS, Latent, Noise
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int

MODULE = "comfy_extras.nodes_custom_sampler"

Scale = Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)]
Seed = Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)]
Output = Annotated[LATENT, Out("output")]
DenoisedOutput = Annotated[LATENT, Out("denoised_output")]


class EmptyNoise:
    """NOISE of zeros, for a latent that already has its noise."""

    seed = 0

    def generate_noise(self, input_latent: Latent) -> torch.Tensor:
        return prepare_empty_noise(input_latent["samples"])


class RandomNoise:
    """NOISE from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def generate_noise(self, input_latent: Latent) -> torch.Tensor:
        return prepare_noise(input_latent["samples"], self.seed, input_latent.get("batch_index"))


@node("RandomNoise", display_name=None, category="model/sampling/noise", python_module=MODULE)
def random_noise(context: NodeContext, *, noise_seed: Seed = 0) -> NOISE:
    return RandomNoise(noise_seed)


@node("DisableNoise", display_name=None, category="model/sampling/noise", python_module=MODULE)
def disable_noise(context: NodeContext) -> NOISE:
    return EmptyNoise()


@node(
    "AddNoise",
    display_name=None,
    category="model/sampling/noise",
    python_module=MODULE,
    facts=NodeFacts(evaluates=False),
    experimental=True,
)
def add_noise(context: NodeContext, *, model: MODEL, noise: NOISE, sigmas: SIGMAS, latent_image: LATENT) -> LATENT:
    """Add noise at the first level; for several levels, at the distance between the first and the last."""
    if len(sigmas) == 0:
        return latent_image
    samples = latent_image["samples"]
    sigma = torch.abs(sigmas[0] - sigmas[-1]) if len(sigmas) > 1 else sigmas[0]
    drawn = noise.generate_noise(latent_image)
    if torch.count_nonzero(samples) > 0:  # an empty latent stays empty
        samples = model.get_model_object("process_latent_in")(samples)
    noisy = model.get_model_object("model_sampling").noise_scaling(sigma, drawn, samples)
    unscaled = model.get_model_object("process_latent_out")(noisy)
    return _with_samples(latent_image, torch.nan_to_num(unscaled, nan=0.0, posinf=0.0, neginf=0.0))


# --- guiders ---------------------------------------------------------------------------------------------------------


@node(
    "BasicGuider",
    display_name="Basic Guider",
    category="model/sampling/guiders",
    python_module=MODULE,
    facts=NodeFacts(passes=1),
)
def basic_guider(context: NodeContext, *, model: MODEL, conditioning: CONDITIONING) -> GUIDER:
    guider = BasicGuider(model)
    guider.set_conds(conditioning)
    return guider


@node("CFGGuider", display_name="CFG Guider", category="model/sampling/guiders", python_module=MODULE)
def cfg_guider(
    context: NodeContext, *, model: MODEL, positive: CONDITIONING, negative: CONDITIONING, cfg: Scale = 8.0
) -> GUIDER:
    guider = Guider(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    return guider


@node(
    "DualCFGGuider",
    display_name="Dual CFG Guider",
    category="model/sampling/guiders",
    python_module=MODULE,
    facts=NodeFacts(passes=3),
)
def dual_cfg_guider(
    context: NodeContext,
    *,
    model: MODEL,
    cond1: CONDITIONING,
    cond2: CONDITIONING,
    negative: CONDITIONING,
    cfg_conds: Scale = 8.0,
    cfg_cond2_negative: Scale = 8.0,
    style: Annotated[str, Combo(("regular", "nested"))],
) -> GUIDER:
    guider = DualCfgGuider(model)
    guider.set_conds(cond1, cond2, negative)
    guider.set_cfg(cfg_conds, cfg_cond2_negative, nested=style == "nested")
    return guider


@node(
    "PerpNegGuider",
    display_name="Perp-Neg Guider",
    category="experimental",
    python_module="comfy_extras.nodes_perpneg",
    experimental=True,
    advanced=("neg_scale",),
)
def perp_neg_guider(
    context: NodeContext,
    *,
    model: MODEL,
    positive: CONDITIONING,
    negative: CONDITIONING,
    empty_conditioning: CONDITIONING,
    cfg: Scale = 8.0,
    neg_scale: Annotated[float, Float(min=0.0, max=100.0, step=0.01)] = 1.0,
) -> GUIDER:
    guider = PerpNegGuider(model)
    guider.set_conds(positive, negative, empty_conditioning)
    guider.set_cfg(cfg, neg_scale)
    return guider


# --- sampling --------------------------------------------------------------------------------------------------------


@node("SamplerCustomAdvanced", display_name=None, category="model/sampling/custom", python_module=MODULE)
def sampler_custom_advanced(
    context: NodeContext, *, noise: NOISE, guider: GUIDER, sampler: SAMPLER, sigmas: SIGMAS, latent_image: LATENT
) -> tuple[Output, DenoisedOutput]:
    def run(noise: torch.Tensor, start: Latent, callback: StepCallback) -> torch.Tensor:
        return guider.sample(
            noise, start["samples"], sampler, sigmas, denoise_mask=start.get("noise_mask"), callback=callback,
            seed=seed,
        ).to("cpu")  # fmt: skip

    seed = noise.seed
    with call_of(context):
        return _sampled(guider.model_patcher, noise, sigmas, latent_image, run)


@node(
    "SamplerCustom", display_name=None, category="model/sampling/custom", python_module=MODULE, advanced=("add_noise",)
)
def sampler_custom(
    context: NodeContext,
    *,
    model: MODEL,
    add_noise: Annotated[bool, Flag()] = True,
    noise_seed: Seed = 0,
    cfg: Scale = 8.0,
    positive: CONDITIONING,
    negative: CONDITIONING,
    sampler: SAMPLER,
    sigmas: SIGMAS,
    latent_image: LATENT,
) -> tuple[Output, DenoisedOutput]:
    def run(noise: torch.Tensor, start: Latent, callback: StepCallback) -> torch.Tensor:
        return sample_custom(
            model, noise, cfg, sampler, sigmas, positive, negative, start["samples"],
            noise_mask=start.get("noise_mask"), callback=callback, seed=noise_seed,
        )  # fmt: skip

    with call_of(context):
        noise = RandomNoise(noise_seed) if add_noise else EmptyNoise()
        return _sampled(model, noise, sigmas, latent_image, run)


def _sampled(
    model: Any,
    noise: Noise,
    sigmas: torch.Tensor,
    latent: Latent,
    run: Callable[[torch.Tensor, Latent, StepCallback], torch.Tensor],
) -> tuple[Latent, Latent]:
    """Return the sampled latent and the last prediction of the clean one; both are the same if no step was made."""
    samples = fix_empty_latent_channels(
        model, latent["samples"], latent.get("downscale_ratio_spacial"), latent.get("downscale_ratio_temporal")
    )
    start = _with_samples(latent, samples)
    last: dict[str, torch.Tensor] = {}
    callback = prepare_callback(model, sigmas.shape[-1] - 1, last)
    output = _with_samples(start, run(noise.generate_noise(start), start, callback))
    if "x0" not in last:
        return output, output
    denoised = model.get_model_object("process_latent_out")(last["x0"].cpu())
    return output, _with_samples(start, denoised)


def _with_samples(latent: Latent, samples: torch.Tensor) -> Latent:
    """Return a latent with other values, whose cells are the model's."""
    changed: Any = {**latent, "samples": samples}
    for ratio in ("downscale_ratio_spacial", "downscale_ratio_temporal"):
        changed.pop(ratio, None)
    result: Latent = changed
    return result


NODES = (
    sampler_custom, sampler_custom_advanced, basic_guider, cfg_guider, dual_cfg_guider, perp_neg_guider, random_noise,
    disable_noise, add_noise,
)  # fmt: skip
