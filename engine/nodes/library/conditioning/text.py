"""Nodes that turn prompts into conditioning."""

from __future__ import annotations

from typing import Annotated

from engine.nodes.base import Int, NodeContext, PromptText, node
from engine.nodes.sockets import CLIP, CONDITIONING


@node("CLIPTextEncode", display_name="CLIP Text Encode (Prompt)", category="conditioning")
def clip_text_encode(
    context: NodeContext, *, text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)], clip: CLIP
) -> CONDITIONING:
    """Encodes a text prompt using a CLIP model into an embedding that guides the diffusion model."""  # noqa: D401 - ComfyUI's
    return clip.encode_from_tokens_scheduled(clip.tokenize(text))


@node("CLIPSetLastLayer", display_name="CLIP Set Last Layer", category="conditioning")
def clip_set_last_layer(
    context: NodeContext, *, clip: CLIP, stop_at_clip_layer: Annotated[int, Int(min=-24, max=-1, step=1)] = -1
) -> CLIP:
    changed = clip.clone()
    changed.clip_layer(stop_at_clip_layer)
    return changed


NODES = (clip_text_encode, clip_set_last_layer)
