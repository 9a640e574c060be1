"""Node classes made for Stable Diffusion 3: prompts, latents of 16 channels, encoder files, noise levels, guidance."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.library.sampling.model_sampling import MODEL_MODULE, sampled_with_flow
from darkroom.engine.nodes.library.sampling.skip_layers import (
    GUIDANCE_CATEGORY,
    Layers,
    Percent,
    Scale,
    guided_away,
    skipped_layers,
)
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, LATENT, MODEL
from darkroom.engine.nodes.widgets import Combo, Float, Int, LongText, ModelCombo

MODULE = "comfy_extras.nodes_sd3"
LATENT_CHANNELS = 16
TEXT_TYPE = "sd3"

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
Shift = Annotated[float, Float(min=0.0, max=100.0, step=0.01)]


@node("EmptySD3LatentImage", display_name=None, category="model/latent/stable diffusion", python_module=MODULE)
def empty_sd3_latent_image(
    context: NodeContext,
    *,
    width: Side = 1024,
    height: Side = 1024,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    samples = torch.zeros([batch_size, LATENT_CHANNELS, height // 8, width // 8])
    return {"samples": samples, "downscale_ratio_spacial": 8}


@node("CLIPTextEncodeSD3", display_name="CLIP Text Encode (SD3)", category="model/conditioning/stable diffusion",
      python_module=MODULE, facts=NodeFacts(items="alike"), advanced=("empty_padding",))  # fmt: skip
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


@node(
    "TripleCLIPLoader",
    display_name="Load CLIP (Triple)",
    category="model/loaders",
    python_module=MODULE,
    facts=NodeFacts(reads_early=True, items="alike"),
)
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


@node(
    "ModelSamplingSD3",
    category="model/patch/stable diffusion",
    python_module=MODEL_MODULE,
    facts=NodeFacts(items="alike"),
)
def model_sampling_sd3(context: NodeContext, *, model: MODEL, shift: Shift = 3.0) -> MODEL:
    return sampled_with_flow(model, shift, 1000.0)


@node("SkipLayerGuidanceSD3", display_name=None, category=GUIDANCE_CATEGORY, python_module=MODULE,
      experimental=True, advanced=("layers", "start_percent", "end_percent"))  # fmt: skip
def skip_layer_guidance_sd3(
    context: NodeContext,
    *,
    model: MODEL,
    layers: Layers = "7, 8, 9",
    scale: Scale = 3.0,
    start_percent: Percent = 0.01,
    end_percent: Percent = 0.15,
) -> MODEL:
    """Generic version of SkipLayerGuidance node that can be used on every DiT model."""  # noqa: D401 - ComfyUI's words
    return guided_away(model, skipped_layers(model, layers, "", start_percent, end_percent), scale)


NODES = (empty_sd3_latent_image, clip_text_encode_sd3, triple_clip_loader, model_sampling_sd3, skip_layer_guidance_sd3)
