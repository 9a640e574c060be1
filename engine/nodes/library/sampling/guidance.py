"""MODEL with another guidance rule: thin adapters from `engine/diffusion/guidance_rules.py` to sampling's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion import guidance_rules as rules
from darkroom.engine.diffusion.conditions import convert_conditioning, with_model_inputs
from darkroom.engine.diffusion.guidance import calc_cond_batch
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.model_sampling_variants import RectifiedFlow
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, LATENT_OPERATION, MODEL
from darkroom.engine.nodes.widgets import Flag, Float, Int

PatchedModel = Annotated[MODEL, Out("patched_model")]
LeastScale = Annotated[float, Float(min=0.0, max=100.0, step=0.5, round=0.01)]
Arguments = Mapping[str, Any]

VIDEO = "model/sampling/guiders"
VIDEO_MODULE = "comfy_extras.nodes_video_model"


def _after_guidance(model: Model, function: Callable[[Arguments], torch.Tensor]) -> Model:
    patched = model.clone()
    patched.set_model_sampler_post_cfg_function(function)
    return patched


def _before_guidance(model: Model, function: Callable[[Arguments], object]) -> Model:
    patched = model.clone()
    patched.set_model_sampler_pre_cfg_function(function)
    return patched


def _has_both_sides(args: Arguments) -> bool:
    return len(args["conds_out"]) > 1 and all(side is not None for side in args["conds"][:2])


@node(
    "RescaleCFG",
    category="model/patch",
    python_module="comfy_extras.nodes_model_advanced",
    facts=NodeFacts(items="alike"),
)
def rescale_cfg(
    context: NodeContext,
    *,
    model: MODEL,
    multiplier: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.7,
) -> MODEL:
    is_flow = isinstance(model.get_model_object("model_sampling"), RectifiedFlow)

    def rescaled(args: Arguments) -> torch.Tensor:
        x: torch.Tensor = args["input"]
        sides = args["cond_denoised"], args["uncond_denoised"]
        if is_flow:
            return x - rules.rescaled_predictions(*sides, args["cond_scale"], multiplier)
        return x - rules.rescaled_cfg(x, args["sigma"], *sides, args["cond_scale"], multiplier)

    patched = model.clone()
    patched.set_model_sampler_cfg_function(rescaled)
    return patched


@node(
    "RenormCFG",
    display_name=None,
    category="model/patch",
    python_module="comfy_extras.nodes_lumina2",
    advanced=("cfg_trunc", "renorm_cfg"),
)
def renorm_cfg(
    context: NodeContext,
    *,
    model: MODEL,
    cfg_trunc: Annotated[float, Float(min=0.0, max=100.0, step=0.01)] = 100,
    renorm_cfg: Annotated[float, Float(min=0.0, max=100.0, step=0.01)] = 1.0,
) -> MODEL:
    """Apply guidance only below the noise level `cfg_trunc`, and limit its norm."""

    def renormed(args: Arguments) -> torch.Tensor:
        cond, uncond = args["cond_denoised"], args["uncond_denoised"]
        if args["timestep"][0] < cfg_trunc:
            cond = rules.renormed_cfg(cond, uncond, args["cond_scale"], renorm_cfg)
        result: torch.Tensor = args["input"] - cond
        return result

    patched = model.clone()
    patched.set_model_sampler_cfg_function(renormed)
    return patched


@node(
    "PerpNeg",
    display_name="Perp-Neg (DEPRECATED by Perp-Neg Guider)",
    category="experimental",
    python_module="comfy_extras.nodes_perpneg",
    experimental=True,
    deprecated=True,
    advanced=("neg_scale",),
)
def perp_neg(
    context: NodeContext,
    *,
    model: MODEL,
    empty_conditioning: CONDITIONING,
    neg_scale: Annotated[float, Float(min=0.0, max=100.0, step=0.01)] = 1.0,
) -> MODEL:
    empty = convert_conditioning(empty_conditioning)

    def perpendicular(args: Arguments) -> torch.Tensor:
        network, x = args["model"], args["input"]
        side = [with_model_inputs(item, network, x, x.device, "negative", {}) for item in empty]
        (nothing,) = calc_cond_batch(network, [side], x, args["sigma"], args["model_options"])
        sides = args["cond_denoised"], args["uncond_denoised"], nothing
        result: torch.Tensor = x - rules.perpendicular_negative(*sides, neg_scale, args["cond_scale"])
        return result

    patched = model.clone()
    patched.set_model_sampler_cfg_function(perpendicular)
    return patched


@node("CFGZeroStar", display_name=None, category="advanced/guidance", python_module="comfy_extras.nodes_cfg")
def cfg_zero_star(context: NodeContext, *, model: MODEL) -> PatchedModel:
    return _after_guidance(
        model,
        lambda args: rules.zero_star(
            args["denoised"], args["input"], args["cond_denoised"], args["uncond_denoised"], args["cond_scale"]
        ),
    )


@node("CFGNorm", display_name=None, category="advanced/guidance", python_module="comfy_extras.nodes_cfg",
      experimental=True)  # fmt: skip
def cfg_norm(
    context: NodeContext,
    *,
    model: MODEL,
    strength: Annotated[float, Float(min=0.0, max=100.0, step=0.01)] = 1.0,
    pre_cfg: Annotated[bool, Flag(), Optional()] = False,
) -> PatchedModel:
    """Scale what guidance gives to the norm that the positive side has over the channels.

    With `pre_cfg` the noise is scaled, up or down, in place of the sampler's own guidance; else the denoised latent,
    only down.
    """
    if not pre_cfg:
        return _after_guidance(
            model, lambda args: rules.channel_normed(args["denoised"], args["cond_denoised"], strength)
        )

    def combined(args: Arguments) -> torch.Tensor:
        return rules.guided_to_norm(args["cond"], args["uncond"], args["cond_scale"], strength)

    patched = model.clone()
    patched.set_model_sampler_cfg_function(combined)
    return patched


@node(
    "FreSca",
    category="experimental",
    python_module="comfy_extras.nodes_fresca",
    experimental=True,
    advanced=("scale_low", "scale_high", "freq_cutoff"),
)
def fresca(
    context: NodeContext,
    *,
    model: MODEL,
    scale_low: Annotated[float, Float(min=0, max=10, step=0.01)] = 1.0,
    scale_high: Annotated[float, Float(min=0, max=10, step=0.01)] = 1.25,
    freq_cutoff: Annotated[int, Int(min=1, max=10000, step=1)] = 20,
) -> MODEL:
    """Applies frequency-dependent scaling to the guidance"""  # noqa: D400, D401, D415 - ComfyUI's words

    def scaled(args: Arguments) -> Any:
        if not _has_both_sides(args):
            return args["conds_out"]
        cond, uncond, *rest = args["conds_out"]
        return [rules.frequency_scaled(cond - uncond, scale_low, scale_high, freq_cutoff) + uncond, uncond, *rest]

    return _before_guidance(model, scaled)


@node("APG", display_name="Adaptive Projected Guidance", category="model/sampling/custom",
      python_module="comfy_extras.nodes_apg", advanced=("eta", "norm_threshold", "momentum"))  # fmt: skip
def apg(
    context: NodeContext,
    *,
    model: MODEL,
    eta: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    norm_threshold: Annotated[float, Float(min=0.0, max=50.0, step=0.1)] = 5.0,
    momentum: Annotated[float, Float(min=-5.0, max=1.0, step=0.01)] = 0.0,
) -> MODEL:
    guidance = rules.ProjectedGuidance(eta, norm_threshold, momentum)

    def projected(args: Arguments) -> object:
        if len(args["conds_out"]) == 1:
            return args["conds_out"]
        cond, uncond, *rest = args["conds_out"]
        return [guidance.positive(cond, uncond, args["cond_scale"], float(on_host(args["sigma"])[0])), uncond, *rest]

    return _before_guidance(model, projected)


@node("TCFG", display_name="Tangential Damping CFG", category="advanced/guidance",
      python_module="comfy_extras.nodes_tcfg")  # fmt: skip
def tcfg(context: NodeContext, *, model: MODEL) -> PatchedModel:
    """TCFG – Tangential Damping CFG (2503.18137)

    Refine the uncond (negative) to align with the cond (positive) for improving quality.
    """  # noqa: D400, D415 - ComfyUI's words

    def damped(args: Arguments) -> object:
        if not _has_both_sides(args):
            return args["conds_out"]
        cond, uncond, *rest = args["conds_out"]
        return [cond, rules.tangentially_damped(args["input"], cond, uncond), *rest]

    return _before_guidance(model, damped)


@node(
    "Mahiro",
    display_name="Positive-Biased Guidance",
    category="experimental",
    python_module="comfy_extras.nodes_mahiro",
    experimental=True,
)
def mahiro(context: NodeContext, *, model: MODEL) -> PatchedModel:
    """Modify the guidance to scale more on the 'direction' of the positive prompt rather than the difference between the negative prompt."""  # noqa: E501 - ComfyUI's one line, shown to users
    return _after_guidance(
        model,
        lambda args: rules.mahiro(args["denoised"], args["cond_denoised"], args["uncond_denoised"], args["cond_scale"]),
    )


@node(
    "Epsilon Scaling",
    display_name=None,
    category="model/patch/unet",
    python_module="comfy_extras.nodes_eps",
    advanced=("scaling_factor",),
)
def epsilon_scaling(
    context: NodeContext,
    *,
    model: MODEL,
    scaling_factor: Annotated[float, Float(min=0.5, max=1.5, step=0.001, extra={"display": "number"})] = 1.005,
) -> MODEL:
    factor = scaling_factor or 1e-9  # a link may bring 0
    return _after_guidance(model, lambda args: rules.epsilon_scaled(args["denoised"], args["input"], factor))


@node("LatentApplyOperationCFG", display_name=None, category="model/latent/advanced/operations",
      python_module="comfy_extras.nodes_latent", experimental=True)  # fmt: skip
def latent_apply_operation_cfg(context: NodeContext, *, model: MODEL, operation: LATENT_OPERATION) -> MODEL:
    """Apply an operation to the guidance (positive minus negative) before it is scaled."""

    def applied(args: Arguments) -> object:
        first, *rest = args["conds_out"]
        if len(rest) == 1:
            return [operation(latent=first - rest[0]) + rest[0], rest[0]]
        return [operation(latent=first), *rest]

    return _before_guidance(model, applied)


# --- another scale for each image of a batch -----------------------------------------------------------------------


def _with_scales(model: Model, scales: Callable[[float, torch.Tensor], torch.Tensor]) -> Model:
    """Return a model whose guidance scale varies over the batch.

    `scales` takes the scale of guidance and the position of each image in the batch, 0 to 1.
    """

    def guided(args: Arguments) -> torch.Tensor:
        cond, uncond = args["cond"], args["uncond"]
        places = torch.linspace(0, 1, cond.shape[0], device=cond.device)
        scale = scales(args["cond_scale"], places).reshape(-1, 1, 1, 1)
        result: torch.Tensor = uncond + scale * (cond - uncond)
        return result

    patched = model.clone()
    patched.set_model_sampler_cfg_function(guided)
    return patched


@node(
    "VideoLinearCFGGuidance",
    display_name="Video Linear CFG Guidance",
    category=VIDEO,
    python_module=VIDEO_MODULE,
    advanced=("min_cfg",),
)
def video_linear_cfg_guidance(context: NodeContext, *, model: MODEL, min_cfg: LeastScale = 1.0) -> MODEL:
    """Raise the guidance scale from `min_cfg` for the first image of a batch to the sampler's for the last."""
    return _with_scales(model, lambda scale, places: min_cfg + places * (scale - min_cfg))


@node(
    "VideoTriangleCFGGuidance",
    display_name="Video Triangle CFG Guidance",
    category=VIDEO,
    python_module=VIDEO_MODULE,
    advanced=("min_cfg",),
)
def video_triangle_cfg_guidance(context: NodeContext, *, model: MODEL, min_cfg: LeastScale = 1.0) -> MODEL:
    """Use `min_cfg` for the first and last image of a batch and the sampler's scale for the middle one."""

    def scales(scale: float, places: torch.Tensor) -> torch.Tensor:
        return 2 * (places - torch.floor(places + 0.5)).abs() * (scale - min_cfg) + min_cfg

    return _with_scales(model, scales)


NODES = (
    rescale_cfg, renorm_cfg, perp_neg, cfg_zero_star, cfg_norm, fresca, apg, tcfg, mahiro, epsilon_scaling,
    latent_apply_operation_cfg, video_linear_cfg_guidance, video_triangle_cfg_guidance,
)  # fmt: skip
