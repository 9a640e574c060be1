"""The node that cuts out what a mask covers."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.images.mask_crop import cropped_to_mask
from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.page_widgets import Color, rgb_of
from darkroom.engine.nodes.sockets import IMAGE, MASK
from darkroom.engine.nodes.widgets import Float, Int

ALIASES = ["crop to mask", "mask crop", "crop mask", "mask crop resize", "crop mask resize", "trellis2", "pixal3d"]

Side = Annotated[int, Int(min=64, max=4096, step=8)]


@node("ImageCropToMask", display_name="Crop Image to Mask", category="image/transform",
      python_module="comfy_extras.nodes_images", search_aliases=ALIASES)  # fmt: skip
def image_crop_to_mask(
    context: NodeContext,
    *,
    images: IMAGE,
    masks: MASK,
    width: Side = 1024,
    height: Side = 1024,
    pad_factor: Annotated[float, Float(min=1.0, max=2.0, step=0.01)] = 1.0,
    grow_mask: Annotated[int, Int(min=-32, max=32, step=1)] = 0,
    background: Color = "#000000",
) -> Annotated[IMAGE, Out("images")]:
    """Cut out of each image what its mask covers, centred, in front of a plain background (black for no colour)."""
    if masks.shape[0] not in (1, images.shape[0]):
        raise ValueError(f"masks: another number than of images; got {masks.shape[0]}, expected {images.shape[0]} or 1")
    if masks.shape[-2:] != images.shape[1:3]:
        masks = resize(masks.unsqueeze(1).float(), images.shape[2], images.shape[1], "bilinear").squeeze(1)
    red, green, blue = (value / 255.0 for value in rgb_of(background) or (0, 0, 0))
    crops = []
    for image, mask in zip(images[..., :3], masks.expand(images.shape[0], -1, -1), strict=True):
        context.cancel.check()
        crops.append(cropped_to_mask(image, mask, width, height, pad_factor, grow_mask, (red, green, blue)))
    return torch.stack(crops)


NODES = (image_crop_to_mask,)
