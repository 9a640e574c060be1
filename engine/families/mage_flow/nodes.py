"""Node classes made for Mage-Flow: an instruction with the images that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch

from darkroom.engine.families.mage_flow.vae import CHANNELS, PATCH_PX
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, LATENT, VAE
from darkroom.engine.nodes.widgets import Int, LongText

DEFAULT_PX = 1024
SEEN_PX = 384  # of the longer side of an image that the text encoder sees

IMAGES = Growing(item=Field("image", Socket("IMAGE")), names=tuple(f"image_{i}" for i in range(1, 17)), min=0)
Side = Annotated[int, Int(min=0, max=8192, step=16)]


@node("TextEncodeMageFlowEdit", display_name=None, category="model/conditioning/mage",
      python_module="comfy_extras.nodes_mage", advanced=("negative_prompt",))  # fmt: skip
def text_encode_mage_flow_edit(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: LongText,
    negative_prompt: LongText,
    vae: Annotated[VAE | None, Optional()] = None,
    images: Annotated[Mapping[str, torch.Tensor], IMAGES],
    width: Side = 0,
    height: Side = 0,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> tuple[Annotated[CONDITIONING, Out("positive")], Annotated[CONDITIONING, Out("negative")],
           Annotated[LATENT, Out("latent")]]:  # fmt: skip
    """Encode an instruction and what to keep away from with up to 16 images, which a VAE makes reference images.

    These get the size of the result: `width` and `height`, or that of the first image where one of them is 0. The
    latent is empty, of this size.
    """
    ordered = [image for _, image in sorted(images.items(), key=lambda item: int(item[0].rpartition("_")[2]))]
    own_height, own_width = ordered[0].shape[1:3] if ordered else (DEFAULT_PX, DEFAULT_PX)
    new_width, new_height = _whole_cells(width or own_width), _whole_cells(height or own_height)
    references = [] if vae is None else [vae.encode(_of_size(image, new_width, new_height)) for image in ordered]
    seen = [_seen(image) for image in ordered]
    encoded = []
    for text in (prompt, negative_prompt or " "):
        conditioning = clip.encode_from_tokens_scheduled(clip.tokenize(text, images=seen))
        for reference in references:
            conditioning = with_appended(conditioning, "reference_latents", reference)
        encoded.append(conditioning)
    latent = torch.zeros([batch_size, CHANNELS, new_height // PATCH_PX, new_width // PATCH_PX])
    return encoded[0], encoded[1], {"samples": latent}


def _whole_cells(side_px: int) -> int:
    return max(PATCH_PX, side_px // PATCH_PX * PATCH_PX)


def _of_size(image: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Return an image [B, H, W, C] in this size, without opacity."""
    is_fitting = image.shape[1:3] == (height, width)
    return (image if is_fitting else resize_image(image, width, height, "bicubic"))[..., :3]


def _seen(image: torch.Tensor) -> torch.Tensor:
    """Return an image [B, H, W, C] whose longer side is not longer than what the text encoder was trained with."""
    height, width = image.shape[1:3]
    factor = SEEN_PX / max(height, width)
    if factor >= 1:
        return image
    return resize_image(image, max(1, round(width * factor)), max(1, round(height * factor)), "bicubic")


NODES = (text_encode_mage_flow_edit,)
