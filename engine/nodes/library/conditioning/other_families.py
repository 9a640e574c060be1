"""Nodes made for one family of models that work with others as well, as they do in ComfyUI.

A network ignores conditioning options that it does not support. An empty latent takes the channels of the model it is
sampled with. Workflows with these nodes therefore keep working when only their checkpoint is changed.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch

from engine.images.pixels import resize_image
from engine.nodes.base import Combo, Float, Int, NodeContext, Optional, PromptText, node
from engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from engine.nodes.sockets import CLIP, CLIP_VISION_OUTPUT, CONDITIONING, IMAGE, LATENT, Conditioning

FLUX_MODULE = "comfy_extras.nodes_flux"
FLUX_CATEGORY = "advanced/conditioning/flux"
LATENT_CHANNELS = 16
T5_TYPES = ("t5xxl", "pile_t5xl", "t5base", "mt5xl", "umt5xxl")
# Widths and heights that Flux Kontext was trained with.
KONTEXT_SIZES_PX = (
    (672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184), (944, 1104),
    (1024, 1024), (1104, 944), (1184, 880), (1248, 832), (1328, 800), (1392, 752), (1456, 720), (1504, 688),
    (1568, 672),
)  # fmt: skip

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
SideOrNone = Annotated[int, Int(min=0, max=MAX_SIDE_PX)]
LongText = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]
TokenCount = Annotated[int, Int(min=0, max=10000, step=1)]


def _with_appended(conditioning: Conditioning, name: str, item: object) -> Conditioning:
    """Return the same entries with one more item in a list among their options."""
    return [[tokens, {**options, name: [*(options.get(name) or []), item]}] for tokens, options in conditioning]


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


@node("CLIPTextEncodeFlux", display_name=None, category=FLUX_CATEGORY, python_module=FLUX_MODULE)
def clip_text_encode_flux(
    context: NodeContext,
    *,
    clip: CLIP,
    clip_l: LongText,
    t5xxl: LongText,
    guidance: Annotated[float, Float(min=0.0, max=100.0, step=0.1)] = 3.5,
) -> CONDITIONING:
    """Encode a prompt for each of two text encoders, with the scale of guidance."""
    tokens = {**clip.tokenize(clip_l), "t5xxl": clip.tokenize(t5xxl)["t5xxl"]}
    return clip.encode_from_tokens_scheduled(tokens, add_dict={"guidance": guidance})


@node("FluxGuidance", display_name=None, category=FLUX_CATEGORY, python_module=FLUX_MODULE)
def flux_guidance(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    guidance: Annotated[float, Float(min=0.0, max=100.0, step=0.1)] = 3.5,
) -> CONDITIONING:
    return with_options(conditioning, guidance=guidance)


@node("FluxDisableGuidance", display_name=None, category=FLUX_CATEGORY, python_module=FLUX_MODULE)
def flux_disable_guidance(context: NodeContext, *, conditioning: CONDITIONING) -> CONDITIONING:
    return with_options(conditioning, guidance=None)


@node("FluxKontextImageScale", display_name=None, category=FLUX_CATEGORY, python_module=FLUX_MODULE)
def flux_kontext_image_scale(context: NodeContext, *, image: IMAGE) -> IMAGE:
    """Scale and crop a picture to the size of Flux Kontext with the nearest aspect ratio."""
    aspect = image.shape[2] / image.shape[1]
    width, height = min(KONTEXT_SIZES_PX, key=lambda size: (abs(aspect - size[0] / size[1]), size))
    return resize_image(image, width, height, "lanczos", "center")


@node(
    "FluxKontextMultiReferenceLatentMethod",
    display_name=None,
    category=FLUX_CATEGORY,
    python_module=FLUX_MODULE,
    experimental=True,
)
def flux_kontext_multi_reference_latent_method(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    reference_latents_method: Annotated[str, Combo(("offset", "index", "uxo/uno"))],
) -> CONDITIONING:
    method = "uxo" if "uxo" in reference_latents_method else reference_latents_method
    return with_options(conditioning, reference_latents_method=method)


@node("unCLIPConditioning", category="conditioning")
def unclip_conditioning(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    clip_vision_output: CLIP_VISION_OUTPUT,
    strength: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    noise_augmentation: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.0,
) -> CONDITIONING:
    """Attach a picture's embedding to conditioning for an unCLIP model."""
    if strength == 0:
        return conditioning
    seen = {
        "clip_vision_output": clip_vision_output,
        "strength": strength,
        "noise_augmentation": noise_augmentation,
    }
    return _with_appended(conditioning, "unclip_conditioning", seen)


@node("ReferenceLatent", display_name=None, category="advanced/conditioning/edit_models",
      python_module="comfy_extras.nodes_edit_model")  # fmt: skip
def reference_latent(
    context: NodeContext, *, conditioning: CONDITIONING, latent: Annotated[LATENT | None, Optional()] = None
) -> CONDITIONING:
    """Add a reference picture for a model that edits by reference pictures."""
    return conditioning if latent is None else _with_appended(conditioning, "reference_latents", latent["samples"])


@node("T5TokenizerOptions", display_name=None, category="_for_testing/conditioning",
      python_module="comfy_extras.nodes_cond", experimental=True)  # fmt: skip
def t5_tokenizer_options(
    context: NodeContext, *, clip: CLIP, min_padding: TokenCount = 0, min_length: TokenCount = 0
) -> CLIP:
    changed = clip.clone()
    for kind in T5_TYPES:
        changed.set_tokenizer_option(f"{kind}_min_padding", min_padding)
        changed.set_tokenizer_option(f"{kind}_min_length", min_length)
    return changed


@node("CLIPTextEncodeSDXLRefiner", display_name=None, category="advanced/conditioning",
      python_module="comfy_extras.nodes_clip_sdxl")  # fmt: skip
def clip_text_encode_sdxl_refiner(
    context: NodeContext,
    *,
    ascore: Annotated[float, Float(min=0.0, max=1000.0, step=0.01)] = 6.0,
    width: SideOrNone = 1024,
    height: SideOrNone = 1024,
    text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    clip: CLIP,
) -> CONDITIONING:
    """Encode a prompt for the refiner, with an aesthetic score and the size of the picture it was trained on."""
    numbers = {"aesthetic_score": ascore, "width": width, "height": height}
    return clip.encode_from_tokens_scheduled(clip.tokenize(text), add_dict=numbers)


@node("CLIPTextEncodeSDXL", display_name=None, category="advanced/conditioning",
      python_module="comfy_extras.nodes_clip_sdxl")  # fmt: skip
def clip_text_encode_sdxl(
    context: NodeContext,
    *,
    clip: CLIP,
    width: SideOrNone = 1024,
    height: SideOrNone = 1024,
    crop_w: SideOrNone = 0,
    crop_h: SideOrNone = 0,
    target_width: SideOrNone = 1024,
    target_height: SideOrNone = 1024,
    text_g: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    text_l: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
) -> CONDITIONING:
    """Encode a prompt for each of two text encoders, with the sizes of original and target picture and of the crop.

    The shorter prompt is filled up with empty chunks.
    """
    tokens = {**clip.tokenize(text_g), "l": clip.tokenize(text_l)["l"]}
    empty = clip.tokenize("")
    longest = max(len(tokens["l"]), len(tokens["g"]))
    for slot in ("l", "g"):
        while len(tokens[slot]) < longest:
            tokens[slot] = [*tokens[slot], *empty[slot]]
    numbers = {
        "width": width, "height": height, "crop_w": crop_w, "crop_h": crop_h, "target_width": target_width,
        "target_height": target_height,
    }  # fmt: skip
    return clip.encode_from_tokens_scheduled(tokens, add_dict=numbers)


NODES = (
    empty_sd3_latent_image, clip_text_encode_sd3, clip_text_encode_flux, flux_guidance, flux_disable_guidance,
    flux_kontext_image_scale, flux_kontext_multi_reference_latent_method, unclip_conditioning, reference_latent,
    t5_tokenizer_options, clip_text_encode_sdxl_refiner, clip_text_encode_sdxl,
)  # fmt: skip
