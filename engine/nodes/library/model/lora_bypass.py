"""Nodes that apply a LoRA beside the weights, as ComfyUI offers them for debugging.

In ComfyUI the LoRA is computed next to each layer and added to what it returns. Here it is added to the weights, which
is the same sum: `strength` counts as in the usual nodes, and so do adapters of every kind.
"""

from __future__ import annotations

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext, node
from darkroom.engine.nodes.library.model.lora import LoraName, Strength, with_lora
from darkroom.engine.nodes.sockets import CLIP, MODEL

CATEGORY = "model/loaders"
MODULE = "comfy_extras.nodes_lora_debug"


@node(
    "LoraLoaderBypass",
    display_name="Load LoRA (Bypass) (For debugging)",
    category=CATEGORY,
    python_module=MODULE,
    experimental=True,
    output_tooltips=["The modified diffusion model.", "The modified CLIP model."],
    facts=NodeFacts(items="alike"),
)
def lora_loader_bypass(
    context: NodeContext,
    *,
    model: MODEL,
    clip: CLIP,
    lora_name: LoraName,
    strength_model: Strength = 1.0,
    strength_clip: Strength = 1.0,
) -> tuple[MODEL, CLIP]:
    """Apply a LoRA to a model and its text encoder."""
    if strength_model == 0 and strength_clip == 0:
        return model, clip
    source = context.models.files.state("loras", lora_name)
    tensors = context.models.files.tensors("loras", lora_name)
    patched, patched_clip = with_lora(model, clip, tensors, strength_model, strength_clip, source)
    assert patched is not None and patched_clip is not None
    return patched, patched_clip


@node(
    "LoraLoaderBypassModelOnly",
    display_name="Load LoRA (Bypass, Model Only) (for debugging)",
    category=CATEGORY,
    python_module=MODULE,
    experimental=True,
    output_tooltips=["The modified diffusion model.", "The modified CLIP model."],
    facts=NodeFacts(items="alike"),
)
def lora_loader_bypass_model_only(
    context: NodeContext, *, model: MODEL, lora_name: LoraName, strength_model: Strength = 1.0
) -> MODEL:
    """Apply a LoRA to a model alone."""
    if strength_model == 0:
        return model
    source = context.models.files.state("loras", lora_name)
    tensors = context.models.files.tensors("loras", lora_name)
    patched, _ = with_lora(model, None, tensors, strength_model, 0.0, source)
    assert patched is not None
    return patched


NODES = (lora_loader_bypass, lora_loader_bypass_model_only)
