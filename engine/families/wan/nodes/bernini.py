"""Videos that are made from other videos and images, by Bernini: edited, restyled, or with something put in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch

from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import GivenImage
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import CONDITIONING, VAE
from darkroom.engine.nodes.widgets import Int

MODULE = "comfy_extras.nodes_bernini"
UNIT_PX, MOST_PX = 16, 8192

Side = Annotated[int, Int(min=16, max=MOST_PX, step=16)]
IMAGES = Growing(item=Field("reference_image", Socket("IMAGE")), prefix="reference_image_", min=0, max=8)


def within(frames: torch.Tensor, longest_px: int) -> torch.Tensor:
    """Return frames [F, H, W, 3] whose longer side is at most so long, in units of 16 pixels."""
    height, width = frames.shape[1:3]
    factor = min(longest_px / max(height, width), 1.0)
    new_width, new_height = (max(UNIT_PX, round(side * factor / UNIT_PX) * UNIT_PX) for side in (width, height))
    return resize_image(frames[..., :3], new_width, new_height, "area")


@node(
    "BerniniConditioning",
    display_name="Bernini Conditioning",
    category="model/conditioning/bernini",
    python_module=MODULE,
)
def bernini_conditioning(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Annotated[int, Int(min=1, max=MOST_PX, step=4)] = 81,
    batch_size: Count = 1,
    source_video: GivenImage = None,
    reference_video: GivenImage = None,
    reference_images: Annotated[Mapping[str, torch.Tensor], IMAGES, Optional()],
    ref_max_size: Annotated[int, Int(min=16, max=MOST_PX, step=16), Optional()] = 848,
) -> tuple[Positive, Negative, Start]:
    """Let a video be made from another one, one to put in, and images, each image of a batch by itself.

    The first one is of the video's size, the others keep their aspect ratio.
    """
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    others = [] if source_video is None else [guide.encode(source_video[:length], "area")]
    if reference_video is not None:
        others.append(vae.encode(within(reference_video[:length], ref_max_size)))
    for name in sorted(reference_images):
        others += [vae.encode(within(image[None], ref_max_size)) for image in reference_images[name]]
    if others:
        guide.set(context_latents=others)
    return guide.outputs


NODES = (bernini_conditioning,)
