"""Nodes that use images in place of prompt words: CLIP's image encoder, and style models."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP_VISION, CLIP_VISION_OUTPUT, CONDITIONING, IMAGE, STYLE_MODEL
from darkroom.engine.nodes.widgets import Choice, Float, ModelFile


@node("CLIPVisionLoader", display_name="Load CLIP Vision", category="model/loaders")
def clip_vision_loader(context: NodeContext, *, clip_name: Annotated[str, ModelFile("clip_vision")]) -> CLIP_VISION:
    loaded: CLIP_VISION = context.models.auxiliary.clip_vision(clip_name)
    return loaded


@node("CLIPVisionEncode", display_name="CLIP Vision Encode", category="model/conditioning")
def clip_vision_encode(
    context: NodeContext,
    *,
    clip_vision: CLIP_VISION,
    image: IMAGE,
    crop: Annotated[str, Choice(("center", "none"))],
) -> CLIP_VISION_OUTPUT:
    output: CLIP_VISION_OUTPUT = clip_vision.encode_image(image, crop=crop == "center")
    return output


@node("StyleModelLoader", display_name="Load Style Model", category="model/loaders")
def style_model_loader(
    context: NodeContext, *, style_model_name: Annotated[str, ModelFile("style_models")]
) -> STYLE_MODEL:
    loaded: STYLE_MODEL = context.models.auxiliary.style_model(style_model_name)
    return loaded


@node("StyleModelApply", display_name="Apply Style Model", category="model/conditioning")
def style_model_apply(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    style_model: STYLE_MODEL,
    clip_vision_output: CLIP_VISION_OUTPUT,
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.001)] = 1.0,
    strength_type: Annotated[str, Choice(("multiply", "attn_bias"))],
) -> CONDITIONING:
    """Append the image's tokens to those of the prompt.

    `attn_bias` weighs them by an attention mask, which not every network reads.
    """
    words = style_model.get_cond(clip_vision_output).flatten(0, 1).unsqueeze(0)  # [1, B * N, C]
    if strength_type == "multiply":
        words = words * strength
    is_weighed = strength_type == "attn_bias" and strength != 1.0
    weight = strength if strength_type == "attn_bias" else 1.0
    styled: list[list[Any]] = []
    for tokens, options in conditioning:
        if is_weighed or "attention_mask" in options:
            options = {**options, **_attention_bias(tokens, options, words.shape[1], weight)}
        styled.append([torch.cat((tokens, words), dim=1), dict(options)])
    return styled


def _attention_bias(tokens: torch.Tensor, options: ValueDict, num_words: int, weight: float) -> ValueDict:
    """Return the attention mask [B, T + n, T + n] (float16, added to scores) extended by `num_words` image tokens.

    The mask covers `tokens` and the image's own; the new ones are inserted in between. All other tokens attend to
    the new ones with a bias of the logarithm of `weight`. The new ones attend to every token without a bias.
    """
    batch, num_tokens = tokens.shape[:2]
    image_shape = options.get("attention_mask_img_shape", (1, 1))
    total = num_tokens + image_shape[0] * image_shape[1]
    mask = options.get("attention_mask")
    if mask is None:
        mask = torch.zeros((batch, total, total), dtype=torch.float16)
    elif mask.dtype == torch.bool:
        mask = torch.log(mask.to(torch.float16))
    old = torch.cat([torch.arange(num_tokens), torch.arange(num_tokens + num_words, total + num_words)])
    grown = torch.zeros((batch, total + num_words, total + num_words), dtype=torch.float16)
    grown[:, old[:, None], old] = mask.to(torch.float16)
    grown[:, old, num_tokens : num_tokens + num_words] = torch.tensor(weight).log().to(torch.float16)
    return {"attention_mask": grown.to(tokens.device), "attention_mask_img_shape": image_shape}


NODES = (clip_vision_loader, clip_vision_encode, style_model_loader, style_model_apply)
