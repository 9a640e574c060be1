"""Nodes that change the guidance of MODEL by noise level or within its attention."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.engine.diffusion.guidance_rules import rescaled_score
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.normalized_attention import NormalizedAttention
from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.wrappers import PREDICT_NOISE, WrapperExecutor
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Float

Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]
Rescaling = Float(min=0.01, max=100.0, step=0.001, extra={"display": "number", "advanced": True})


@node(
    "CFGOverride",
    display_name="CFG Override",
    category="model/sampling/guiders",
    python_module="comfy_extras.nodes_custom_sampler",
)
def cfg_override(
    context: NodeContext,
    *,
    model: MODEL,
    cfg: Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)] = 1.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
) -> MODEL:
    """Use another scale of guidance in a range of noise levels; of several nodes the last one of a level counts."""
    sampling = model.get_model_object("model_sampling")
    highest, lowest = (sampling.percent_to_sigma(percent) for percent in (start_percent, end_percent))

    def overridden(predict: WrapperExecutor, x: torch.Tensor, sigma: torch.Tensor, *rest: object) -> object:
        guider: Any = predict.class_obj
        if not lowest <= float(on_host(sigma).flatten()[0]) <= highest:
            return predict(x, sigma, *rest)
        usual, guider.cfg = guider.cfg, cfg
        try:
            return predict(x, sigma, *rest)
        finally:
            guider.cfg = usual

    patched = model.clone()
    patched.add_wrapper(PREDICT_NOISE, overridden)
    return patched


@node(
    "TemporalScoreRescaling",
    display_name="TSR - Temporal Score Rescaling",
    category="model/patch/unet",
    python_module="comfy_extras.nodes_eps",
)
def temporal_score_rescaling(
    context: NodeContext,
    *,
    model: MODEL,
    tsr_k: Annotated[float, Rescaling] = 0.95,
    tsr_sigma: Annotated[float, Rescaling] = 1.0,
) -> Annotated[MODEL, Out("patched_model")]:
    """Scale the score by noise level: more detail with a `tsr_k` below 1, less above it."""

    def rescaled(args: Options) -> torch.Tensor:
        sampling = args["model"].current_patcher.get_model_object("model_sampling")
        return rescaled_score(args["denoised"], args["input"], args["sigma"], sampling, tsr_k, tsr_sigma)

    patched = model.clone()
    patched.set_model_sampler_post_cfg_function(rescaled)
    return patched


@node(
    "NAGuidance",
    display_name="Normalized Attention Guidance",
    category="advanced/guidance",
    python_module="comfy_extras.nodes_nag",
    experimental=True,
)
def normalized_attention_guidance(
    context: NodeContext,
    *,
    model: MODEL,
    nag_scale: Annotated[float, Float(min=0.0, max=50.0, step=0.1)] = 5.0,
    nag_alpha: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.5,
    nag_tau: Annotated[float, Float(min=1.0, max=10.0, step=0.01)] = 1.5,
) -> MODEL:
    """Move the features of attention away from those of the negative prompt, also in models without guidance."""
    patched = model.clone()
    patched.set_model_attn1_output_patch(NormalizedAttention(nag_scale, nag_alpha, nag_tau))
    patched.disable_model_cfg1_optimization()
    return patched


NODES = (cfg_override, temporal_score_rescaling, normalized_attention_guidance)
