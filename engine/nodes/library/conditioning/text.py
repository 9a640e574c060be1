"""Nodes that turn prompts into conditioning."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING
from darkroom.engine.nodes.widgets import Int, PromptText

T5_TYPES = ("t5xxl", "pile_t5xl", "t5base", "mt5xl", "umt5xxl")

TokenCount = Annotated[int, Int(min=0, max=10000, step=1)]


@node(
    "CLIPTextEncode",
    display_name="CLIP Text Encode (Prompt)",
    category="model/conditioning",
    facts=NodeFacts(items="alike"),
)
def clip_text_encode(
    context: NodeContext, *, text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)], clip: CLIP
) -> CONDITIONING:
    """Encodes a text prompt using a CLIP model into an embedding that guides the diffusion model."""  # noqa: D401 - ComfyUI's
    return clip.encode_from_tokens_scheduled(clip.tokenize(text))


@node(
    "CLIPSetLastLayer",
    display_name="CLIP Set Last Layer",
    category="model/conditioning",
    facts=NodeFacts(items="alike"),
    advanced=("stop_at_clip_layer",),
)
def clip_set_last_layer(
    context: NodeContext, *, clip: CLIP, stop_at_clip_layer: Annotated[int, Int(min=-24, max=-1, step=1)] = -1
) -> CLIP:
    changed = clip.clone()
    changed.clip_layer(stop_at_clip_layer)
    return changed


@node("T5TokenizerOptions", display_name="T5 Tokenizer Options", category="model/conditioning",
      python_module="comfy_extras.nodes_cond", experimental=True)  # fmt: skip
def t5_tokenizer_options(
    context: NodeContext, *, clip: CLIP, min_padding: TokenCount = 0, min_length: TokenCount = 0
) -> CLIP:
    changed = clip.clone()
    for kind in T5_TYPES:
        changed.set_tokenizer_option(f"{kind}_min_padding", min_padding)
        changed.set_tokenizer_option(f"{kind}_min_length", min_length)
    return changed


NODES = (clip_text_encode, clip_set_last_layer, t5_tokenizer_options)
