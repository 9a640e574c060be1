"""Node classes made for Qwen-Image: an instruction with the images that it is about, and latents of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch

from darkroom.engine.families.text.qwen25_vl import EDIT_TEMPLATE
from darkroom.engine.images.pixels import resize_to_area
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_appended
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, IMAGE, LATENT, VAE
from darkroom.engine.nodes.widgets import Int, LongText
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER

MODULE = "comfy_extras.nodes_qwen"
CATEGORY = "model/conditioning/qwen image"
REFERENCE_AREA_PX = 1024 * 1024
SEEN_AREA_PX = 384 * 384  # of images that the text encoder sees beside others
CELL_PX = 8
CHANNELS = 16  # of a latent

REFERENCE = "Picture"  # the word before an image's number in the prompts of its training


@node("TextEncodeQwenImageEdit", display_name=None, category=CATEGORY, python_module=MODULE)
def text_encode_qwen_image_edit(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: LongText,
    vae: Annotated[VAE | None, Optional()] = None,
    image: Annotated[IMAGE | None, Optional()] = None,
) -> CONDITIONING:
    """Encode an instruction with the image to edit, which a VAE also makes a reference image."""
    if image is None:
        return clip.encode_from_tokens_scheduled(clip.tokenize(prompt))
    seen = resize_to_area(image, REFERENCE_AREA_PX)
    conditioning = clip.encode_from_tokens_scheduled(clip.tokenize(prompt, images=[seen]))
    return conditioning if vae is None else with_appended(conditioning, "reference_latents", vae.encode(seen))


@node("TextEncodeQwenImageEditPlus", display_name=None, category=CATEGORY, python_module=MODULE)
def text_encode_qwen_image_edit_plus(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: LongText,
    vae: Annotated[VAE | None, Optional()] = None,
    image1: Annotated[IMAGE | None, Optional()] = None,
    image2: Annotated[IMAGE | None, Optional()] = None,
    image3: Annotated[IMAGE | None, Optional()] = None,
) -> CONDITIONING:
    """Encode an instruction with up to three images, which a VAE also makes reference images."""
    given = [(number, item) for number, item in enumerate((image1, image2, image3), start=1) if item is not None]
    introduction = "".join(f"{REFERENCE} {number}: {IMAGE_PLACEHOLDER}" for number, _ in given)
    seen = [resize_to_area(image, SEEN_AREA_PX) for _, image in given]
    tokens = clip.tokenize(introduction + prompt, images=seen, llama_template=EDIT_TEMPLATE)
    conditioning = clip.encode_from_tokens_scheduled(tokens)
    return conditioning if vae is None else _with_references(conditioning, vae, [image for _, image in given])


def _with_references(conditioning: CONDITIONING, vae: VAE, images: Sequence[torch.Tensor]) -> CONDITIONING:
    """Return conditioning with the latents of images, whose sides are whole cells of about a megapixel."""
    for image in images:
        latent = vae.encode(resize_to_area(image, REFERENCE_AREA_PX, CELL_PX))
        conditioning = with_appended(conditioning, "reference_latents", latent)
    return conditioning


@node("EmptyQwenImageLayeredLatentImage", display_name="Empty Qwen Image Layered Latent",
      category="model/latent/qwen", python_module=MODULE)  # fmt: skip
def empty_qwen_image_layered_latent_image(
    context: NodeContext,
    *,
    width: Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)] = 640,
    height: Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)] = 640,
    layers: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 3,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    """Return zeros for images of a size in pixels and their layers, as frames [B, 16, 1 + layers, h, w]."""
    return {"samples": torch.zeros([batch_size, CHANNELS, layers + 1, height // CELL_PX, width // CELL_PX])}


NODES = (text_encode_qwen_image_edit, text_encode_qwen_image_edit_plus, empty_qwen_image_layered_latent_image)
