"""Nodes that join any number of images, masks or latents into one batch.

Those of another size are scaled to that of the first and cropped to fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch.nn.functional import pad

from darkroom.engine.images.pixels import resize, resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import IMAGE, LATENT, MASK, Latent

VERSION = "0.30.0"
MODULE = "comfy_extras.nodes_post_processing"
MAX_ITEMS = 50


def _grown(name: str, socket: Socket) -> Growing:
    return Growing(item=Field(name, socket), prefix=name, min=1, max=MAX_ITEMS)


def join_images(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join images [B, H, W, C]; those with fewer channels get an opaque one."""
    channels = max(image.shape[-1] for image in images)
    images = [pad(image, (0, 1), value=1.0) if image.shape[-1] < channels else image for image in images]
    same = images[0].shape[1:]
    height, width = same[:2]
    return torch.cat(
        [
            image if image.shape[1:] == same else resize_image(image, width, height, "bilinear", "center")
            for image in images
        ]
    )


def join_masks(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join masks [B, H, W]."""
    height, width = masks[0].shape[1:]
    return torch.cat(
        [
            mask
            if mask.shape[1:] == (height, width)
            else resize(mask.unsqueeze(1), width, height, "bilinear", "center").squeeze(1)
            for mask in masks
        ]
    )


def join_latents(latents: Sequence[Latent]) -> Latent:
    """Join latents; each keeps the numbers of its draws of noise."""
    first = latents[0]["samples"]
    samples = [
        latent["samples"]
        if latent["samples"].shape[1:] == first.shape[1:]
        else resize(latent["samples"], first.shape[-1], first.shape[-2], "bilinear", "center")
        for latent in latents
    ]
    draws = [draw for latent in latents for draw in latent.get("batch_index", range(latent["samples"].shape[0]))]
    joined = latents[0].copy()
    joined["samples"], joined["batch_index"] = torch.cat(samples), draws
    return joined


@node("BatchImagesNode", display_name="Batch Images", category="image/batch", python_module=MODULE,
      comfyui_version=VERSION, essentials_category="Image Tools")  # fmt: skip
def batch_images_node(
    context: NodeContext, *, images: Annotated[Mapping[str, torch.Tensor], _grown("image", Socket("IMAGE"))]
) -> IMAGE:
    return join_images(list(images.values()))


@node("BatchMasksNode", display_name="Batch Masks", category="image/mask", python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def batch_masks_node(
    context: NodeContext, *, masks: Annotated[Mapping[str, torch.Tensor], _grown("mask", Socket("MASK"))]
) -> MASK:
    return join_masks(list(masks.values()))


@node("BatchLatentsNode", display_name="Batch Latents", category="model/latent/batch", python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def batch_latents_node(
    context: NodeContext, *, latents: Annotated[Mapping[str, Latent], _grown("latent", Socket("LATENT"))]
) -> LATENT:
    return join_latents(list(latents.values()))


NODES = (batch_images_node, batch_masks_node, batch_latents_node)
