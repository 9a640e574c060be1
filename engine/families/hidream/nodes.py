"""Nodes made for HiDream-I1: four encoder files, and a prompt for each encoder."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING
from darkroom.engine.nodes.widgets import LongText, ModelCombo

MODULE = "comfy_extras.nodes_hidream"
TEXT_TYPE = "hidream"

EncoderFile = Annotated[str, ModelCombo("text_encoders")]


@node(
    "QuadrupleCLIPLoader",
    display_name="Load CLIP (Quadruple)",
    category="model/loaders",
    python_module=MODULE,
    facts=NodeFacts(reads_early=True),
)
def quadruple_clip_loader(
    context: NodeContext,
    *,
    clip_name1: EncoderFile,
    clip_name2: EncoderFile,
    clip_name3: EncoderFile,
    clip_name4: EncoderFile,
) -> CLIP:
    """[Recipes]

    hidream: long clip-l, long clip-g, t5xxl, llama_8b_3.1_instruct
    """  # noqa: D400, D415 - ComfyUI's
    clip: CLIP = context.models.clip_set([clip_name1, clip_name2, clip_name3, clip_name4], text_type=TEXT_TYPE)
    return clip


@node(
    "CLIPTextEncodeHiDream",
    display_name="CLIP Text Encode (HiDream)",
    category="model/conditioning/hidream",
    python_module=MODULE,
)
def clip_text_encode_hidream(
    context: NodeContext, *, clip: CLIP, clip_l: LongText, clip_g: LongText, t5xxl: LongText, llama: LongText
) -> CONDITIONING:
    """Encode a prompt for each of four text encoders. Prompts for absent encoders are ignored."""
    tokens = {}
    for slot, text in (("g", clip_g), ("l", clip_l), ("t5xxl", t5xxl), ("llama", llama)):
        chunks = clip.tokenize(text)
        if slot in chunks:
            tokens[slot] = chunks[slot]
    return clip.encode_from_tokens_scheduled(tokens)


NODES = (quadruple_clip_loader, clip_text_encode_hidream)
