"""Nodes that apply a LoRA beside the weights, as ComfyUI offers them for debugging.

In ComfyUI the LoRA is computed next to each layer and added to what it returns. Here it is added to the weights, which
is the same sum: `strength` counts as in the usual nodes, and so do adapters of every kind.
"""

from __future__ import annotations

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.model.lora import LoraName, Strength, lora_loader, lora_loader_model_only
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
    patched: tuple[MODEL, CLIP] = lora_loader(
        context,
        model=model,
        clip=clip,
        lora_name=lora_name,
        strength_model=strength_model,
        strength_clip=strength_clip,
    )
    return patched


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
    patched: MODEL = lora_loader_model_only(context, model=model, lora_name=lora_name, strength_model=strength_model)
    return patched


NODES = (lora_loader_bypass, lora_loader_bypass_model_only)
