"""MODEL with guidance away from a weakened self-attention."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.attention_guidance import SelfAttentionGuidance, perturbed_attention_guidance
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Float


@node("SelfAttentionGuidance", display_name="Self-Attention Guidance", category="experimental",
      python_module="comfy_extras.nodes_sag", experimental=True, advanced=("blur_sigma",))  # fmt: skip
def self_attention_guidance(
    context: NodeContext,
    *,
    model: MODEL,
    scale: Annotated[float, Float(min=-2.0, max=5.0, step=0.01)] = 0.5,
    blur_sigma: Annotated[float, Float(min=0.0, max=10.0, step=0.1)] = 2.0,
) -> MODEL:
    guidance = SelfAttentionGuidance(scale, blur_sigma)
    patched = model.clone()
    patched.set_model_sampler_post_cfg_function(guidance.guide, disable_cfg1_optimization=True)
    patched.set_model_attn1_replace(guidance.attend, "middle", 0, 0)
    return patched


@node("PerturbedAttentionGuidance", display_name=None, category="model/patch/unet",
      python_module="comfy_extras.nodes_pag")  # fmt: skip
def perturbed_attention(
    context: NodeContext,
    *,
    model: MODEL,
    scale: Annotated[float, Float(min=0.0, max=100.0, step=0.01, round=0.01)] = 3.0,
) -> MODEL:
    patched = model.clone()
    patched.set_model_sampler_post_cfg_function(lambda args: perturbed_attention_guidance(args, scale))
    return patched


NODES = (self_attention_guidance, perturbed_attention)
