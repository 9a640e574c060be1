"""Node classes made for Qwen-Image 2.1: prompts with reference images, and how what is seen of them is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, cast

import torch

from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE
from darkroom.engine.families.qwen_image21.prefix_cache import Place, keeping_run
from darkroom.engine.families.qwen_image21.prefix_states import Storage
from darkroom.engine.families.qwen_image21.vae_files import CHANNELS
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, LATENT, MODEL, VAE
from darkroom.engine.nodes.widgets import Combo, Int, LongText

MODULE = "comfy_extras.nodes_qwen"
CATEGORY = "model/conditioning/qwen image"
VERSION = "0.37.4"
UNIT_PX, CELL_PX = 32, 16
DEFAULT_PX = 1024
CACHE = "qwen_image21_cache"

IMAGES = Growing(item=Field("image", Socket("IMAGE")), names=tuple(f"image_{i}" for i in range(1, 17)), min=0)


@node("TextEncodeQwenImage21", display_name="Text Encode Qwen Image 2.1", category=CATEGORY, python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def text_encode_qwen_image21(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: LongText,
    negative_prompt: LongText,
    vae: Annotated[VAE | None, Optional()] = None,
    resolution: Annotated[int, Int(min=0, max=4096, step=32)] = DEFAULT_PX,
    images: Annotated[Mapping[str, torch.Tensor], IMAGES],
) -> tuple[Annotated[CONDITIONING, Out("positive")], Annotated[CONDITIONING, Out("negative")],
           Annotated[LATENT, Out("latent")]]:  # fmt: skip
    """Encode a prompt and what to keep away from with up to 16 images, which a VAE makes reference images.

    `resolution` is the side in pixels of a square as large as they become; 0 keeps their sizes. The latent is empty, of
    the size of the first of them.
    """
    ordered = sorted(images.items(), key=lambda item: int(item[0].rpartition("_")[2]))
    resized = [_resized(image[:1], resolution) for _, image in ordered]
    seen = [_over_white(image) for image in resized]
    references = [] if vae is None else [vae.encode(image) for image in resized]
    encoded = []
    for text in (prompt, negative_prompt):
        tokens = clip.tokenize(text, images=seen, keep_vision=not references, prevent_empty_text=True)
        conditioning = clip.encode_from_tokens_scheduled(tokens)
        for reference in references:
            conditioning = with_appended(conditioning, "reference_latents", reference)
        encoded.append(conditioning)
    height, width = resized[0].shape[1:3] if resized else (resolution or DEFAULT_PX,) * 2
    latent = torch.zeros([1, CHANNELS, height // CELL_PX, width // CELL_PX])
    return encoded[0], encoded[1], {"samples": latent}


def _resized(image: torch.Tensor, side_px: int) -> torch.Tensor:
    """Return an image [1, H, W, C] of about the area of a square of that side, its sides multiples of 32 pixels."""
    height, width = image.shape[1:3]
    ratio = width / height
    wanted = (math.sqrt(side_px**2 / ratio), math.sqrt(side_px**2 * ratio)) if side_px > 0 else (height, width)
    new_height, new_width = (max(UNIT_PX, round(side / UNIT_PX) * UNIT_PX) for side in wanted)
    if (new_height, new_width) == (height, width):
        return image
    return resize_image(image, new_width, new_height, "lanczos")


def _over_white(image: torch.Tensor) -> torch.Tensor:
    """Return an image [1, H, W, 3 or 4] without opacity, over white."""
    colours, opacity = image[..., :3], image[..., 3:]
    return colours * opacity + (1.0 - opacity) if opacity.shape[-1] else colours


@node("QwenImage21Cache", display_name="Qwen Image 2.1 Cache", category=CATEGORY, python_module=MODULE,
      comfyui_version=VERSION, experimental=True)  # fmt: skip
def qwen_image21_cache(
    context: NodeContext,
    *,
    model: MODEL,
    device: Annotated[str, Combo(("auto", "gpu", "cpu", "off"))] = "auto",
    dtype: Annotated[str, Combo(("default", "int8", "int4"))] = "default",
) -> MODEL:
    """Keep the keys and values of text and reference images between steps: they are the same in each.

    `auto` keeps them on the device that computes, else in RAM, where there is room. Without `int8` and `int4`, which
    round them, the image is the one that is drawn with none kept.
    """
    patched = model.clone()
    patched.model_options["transformer_options"][CACHE] = {"device": device, "dtype": dtype}
    run = keeping_run(cast(Place, device), cast(Storage, dtype), context.files.free_bytes)
    patched.remove_wrappers_with_key(OUTER_SAMPLE, CACHE)
    patched.add_wrapper_with_key(OUTER_SAMPLE, CACHE, run)
    return patched


NODES = (text_encode_qwen_image21, qwen_image21_cache)
