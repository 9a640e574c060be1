"""Node classes made for Anima: its control by images."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.anima.lllite import AnimaLLLite
from darkroom.engine.models.kinds.lllite_patch import LLLiteAttentionPatch, LLLiteMlpPatch, LLLitePatch
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, MASK, MODEL, MODEL_PATCH
from darkroom.engine.nodes.widgets import Float

SELF_ATTENTION = {"q": "self_attn_q_proj", "k": "self_attn_k_proj", "v": "self_attn_v_proj"}
CROSS_ATTENTION = {"q": "cross_attn_q_proj"}

Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]


@node("AnimaLLLiteApply", display_name="Apply Anima LLLite", category="model_patches/anima",
      python_module="comfy_extras.nodes_model_patch", experimental=True)  # fmt: skip
def anima_lllite_apply(
    context: NodeContext,
    *,
    model: MODEL,
    model_patch: MODEL_PATCH,
    image: IMAGE,
    strength: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
    mask: Annotated[MASK | None, Optional()] = None,
) -> MODEL:
    """Control a model by an image, or by an image and the mask of what is painted into it."""
    network = _checked(model, model_patch)
    pixels = image[..., :3]
    reads_mask = network.config.image_channels == 4
    seen = (torch.zeros_like(pixels[..., 0]) if mask is None else mask) if reads_mask else None
    sampling = model.get_model_object("model_sampling")
    patch = LLLitePatch(
        model_patch, pixels, seen, strength,
        start=float(sampling.percent_to_sigma(start_percent)), end=float(sampling.percent_to_sigma(end_percent)),
    )  # fmt: skip
    controlled = model.clone()
    controlled.set_model_post_input_patch(patch)
    controlled.set_model_attn1_patch(LLLiteAttentionPatch(patch, SELF_ATTENTION))
    controlled.set_model_attn2_patch(LLLiteAttentionPatch(patch, CROSS_ATTENTION))
    controlled.set_model_patch(LLLiteMlpPatch(patch), "mlp_patch")
    return controlled


def _checked(model: MODEL, model_patch: MODEL_PATCH) -> AnimaLLLite:
    """Return the control's network. Raises ValueError for one that does not fit the model."""
    network = model_patch.model
    if not isinstance(network, AnimaLLLite):
        raise ValueError("model_patch: another kind; got one of another family, expected an Anima LLLite")
    size = getattr(model.model.diffusion_model.config, "width", None)
    if size != network.config.hidden_size:
        raise ValueError(
            f"model_patch: it does not fit the model; got hidden size {network.config.hidden_size}, expected {size}"
        )
    return network


NODES = (anima_lllite_apply,)
