"""Nodes made for Stable Diffusion 3: a prompt for each text encoder, latents of 16 channels, three encoder files."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from engine.nodes.base import Combo, Int, ModelCombo, NodeContext, PromptText, node
from engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from engine.nodes.sockets import CLIP, CONDITIONING, LATENT

MODULE = "comfy_extras.nodes_sd3"
LATENT_CHANNELS = 16
TEXT_TYPE = "sd3"

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
LongText = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]


@node("EmptySD3LatentImage", display_name=None, category="latent/sd3", python_module="comfy_extras.nodes_sd3")
def empty_sd3_latent_image(
    context: NodeContext,
    *,
    width: Side = 1024,
    height: Side = 1024,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    return {"samples": torch.zeros([batch_size, LATENT_CHANNELS, height // 8, width // 8])}


@node("CLIPTextEncodeSD3", display_name=None, category="advanced/conditioning",
      python_module="comfy_extras.nodes_sd3")  # fmt: skip
def clip_text_encode_sd3(
    context: NodeContext,
    *,
    clip: CLIP,
    clip_l: LongText,
    clip_g: LongText,
    t5xxl: LongText,
    empty_padding: Annotated[str, Combo(("none", "empty_prompt"))],
) -> CONDITIONING:
    """Encode a prompt for each of three text encoders. An empty one may be left out instead of read.

    The shorter one of the first two is filled up with empty chunks. Prompts for absent encoders are ignored.
    """
    tokens: dict[str, Any] = {}
    for slot, text in (("g", clip_g), ("l", clip_l), ("t5xxl", t5xxl)):
        chunks = clip.tokenize(text)
        if slot in chunks:
            tokens[slot] = [] if not text and empty_padding == "none" else chunks[slot]
    if "l" in tokens and "g" in tokens:
        empty = clip.tokenize("")
        longest = max(len(tokens["l"]), len(tokens["g"]))
        for slot in ("l", "g"):
            tokens[slot] = [*tokens[slot], *empty[slot] * (longest - len(tokens[slot]))]
    return clip.encode_from_tokens_scheduled(tokens)


@node("TripleCLIPLoader", display_name=None, category="advanced/loaders", python_module=MODULE)
def triple_clip_loader(
    context: NodeContext,
    *,
    clip_name1: Annotated[str, ModelCombo("text_encoders")],
    clip_name2: Annotated[str, ModelCombo("text_encoders")],
    clip_name3: Annotated[str, ModelCombo("text_encoders")],
) -> CLIP:
    """Load three text encoders for one model."""
    clip: CLIP = context.models.clip_set([clip_name1, clip_name2, clip_name3], text_type=TEXT_TYPE)
    return clip


NODES = (empty_sd3_latent_image, clip_text_encode_sd3, triple_clip_loader)
