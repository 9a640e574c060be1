"""Node classes made for Boogu-Image: an instruction with the images that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch

from darkroom.engine.images.pixels import resize_to_area
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, VAE
from darkroom.engine.nodes.widgets import LongText

SEEN_AREA_PX = 384 * 384  # of images that the text encoder reads
REFERENCE_AREA_PX, UNIT_PX = 1024 * 1024, 16
NAMES = tuple(f"image_{number}" for number in range(1, 17))
IMAGES = Growing(
    item=Field("image", Socket("IMAGE")),
    names=NAMES,
    min=0,
    extra={"tooltip": "Reference image(s) to edit. Boogu focuses on one reference per sample; more are allowed."},
)


@node("TextEncodeBooguEdit", display_name=None, category="model/conditioning/boogu",
      python_module="comfy_extras.nodes_boogu", advanced=("negative_prompt",))  # fmt: skip
def text_encode_boogu_edit(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: LongText,
    negative_prompt: LongText,
    vae: VAE,
    images: Annotated[Mapping[str, torch.Tensor], IMAGES],
) -> tuple[Annotated[CONDITIONING, Out("positive")], Annotated[CONDITIONING, Out("negative")]]:
    """Encode an instruction with up to 16 images, and content to avoid without them.

    Both have the images' latents as references.
    """
    given = [images[name] for name in NAMES if name in images]
    seen = [resize_to_area(image, SEEN_AREA_PX) for image in given]
    latents = [vae.encode(resize_to_area(image, REFERENCE_AREA_PX, UNIT_PX)) for image in given]
    positive = clip.encode_from_tokens_scheduled(clip.tokenize(prompt, images=seen))
    negative = clip.encode_from_tokens_scheduled(clip.tokenize(negative_prompt))
    for latent in latents:
        positive, negative = (with_appended(item, "reference_latents", latent) for item in (positive, negative))
    return positive, negative


NODES = (text_encode_boogu_edit,)
