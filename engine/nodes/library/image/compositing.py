"""Nodes that composite images and separate opacity from colour.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1, MASK `[B, H, W]`, 1 where an image is transparent.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F

from darkroom.engine.images.compositing import (
    PORTER_DUFF_MODES,
    paste,
    porter_duff,
    repeated,
    resize_mask,
    same_channels,
)
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, MASK
from darkroom.engine.nodes.widgets import Combo, Flag, Int

MAX_SIDE_PX = 16384
COMPOSITING_MODULE = "comfy_extras.nodes_compositing"

Position = Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)]


@node(
    "ImageCompositeMasked",
    display_name="Image Composite Masked",
    category="image/compositing",
    python_module="comfy_extras.nodes_mask",
)
def image_composite_masked(
    context: NodeContext,
    *,
    destination: IMAGE,
    source: IMAGE,
    x: Position = 0,
    y: Position = 0,
    resize_source: Annotated[bool, Flag()] = False,
    mask: Annotated[MASK | None, Optional()] = None,
) -> IMAGE:
    """Paste the source over the destination with its corner at (x, y), where the mask is 1."""
    below, above = (item.movedim(-1, 1) for item in same_channels(destination, source))
    if resize_source:
        above = F.interpolate(above, size=below.shape[-2:], mode="bilinear")
    return paste(below, above, x, y, mask).movedim(1, -1)


@node(
    "PorterDuffImageComposite",
    display_name="Porter-Duff Image Composite",
    category="image/compositing",
    python_module=COMPOSITING_MODULE,
)
def porter_duff_image_composite(
    context: NodeContext,
    *,
    source: IMAGE,
    source_alpha: MASK,
    destination: IMAGE,
    destination_alpha: MASK,
    mode: Annotated[str, Combo(PORTER_DUFF_MODES)] = "DST",
) -> tuple[IMAGE, MASK]:
    """Composite images pair by pair, as many as the smallest batch has; all take the destination's size.

    Masks are 1 where an image is transparent. Raises ValueError when the images differ in channels.
    """
    if source.shape[-1] != destination.shape[-1]:
        raise ValueError(f"source has {source.shape[-1]} channels, destination {destination.shape[-1]}")
    count = min(len(source), len(source_alpha), len(destination), len(destination_alpha))
    height, width = destination.shape[1:3]
    above, above_mask, below_mask = (
        _fitted(item[:count], width, height) for item in (source, source_alpha[..., None], destination_alpha[..., None])
    )
    out, opacity = porter_duff(above, 1 - above_mask, destination[:count], 1 - below_mask, mode)
    return out, 1 - opacity.squeeze(-1)


def _fitted(image: torch.Tensor, width: int, height: int) -> torch.Tensor:
    if image.shape[1:3] == (height, width):
        return image
    return resize_image(image, width, height, "bicubic", "center")


@node(
    "SplitImageWithAlpha",
    display_name="Split Image with Alpha",
    category="image/compositing",
    python_module=COMPOSITING_MODULE,
)
def split_image_with_alpha(context: NodeContext, *, image: IMAGE) -> tuple[IMAGE, MASK]:
    """Split an image into its colours and a mask that is 1 where it is transparent; 0 without an alpha channel."""
    opacity = image[..., 3] if image.shape[-1] > 3 else torch.ones_like(image[..., 0])
    return image[..., :3], 1.0 - opacity


@node(
    "JoinImageWithAlpha",
    display_name="Join Image with Alpha",
    category="image/compositing",
    python_module=COMPOSITING_MODULE,
)
def join_image_with_alpha(context: NodeContext, *, image: IMAGE, alpha: MASK) -> IMAGE:
    """Add an alpha channel from a mask (1 where transparent), resized to the image.

    The shorter of the two batches is repeated to the length of the other.
    """
    count = max(len(image), len(alpha))
    opacity = repeated(1.0 - resize_mask(alpha.to(image), image.shape[1], image.shape[2]), count)
    return torch.cat((repeated(image, count)[..., :3], opacity.unsqueeze(-1)), dim=-1)


NODES = (image_composite_masked, porter_duff_image_composite, split_image_with_alpha, join_image_with_alpha)
