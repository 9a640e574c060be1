"""Latents of videos: empty ones, parts of them, and what the nodes that make them share.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells, `F` frames.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.wan.vae_files import WanLatentFormat
from darkroom.engine.families.wan22.vae_files import WAN22_CHANNELS, Wan22LatentFormat
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP_VISION_OUTPUT, IMAGE, LATENT, Latent
from darkroom.engine.nodes.widgets import Int

LATENT_CHANNELS, CELL_PX, FRAMES_RATIO = 16, 8, 4
MODULE = "comfy_extras.nodes_wan"
GREY = 0.5  # of frames that are not given

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
Length = Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)]
GivenImage = Annotated[IMAGE | None, Optional()]
Seen = Annotated[CLIP_VISION_OUTPUT | None, Optional()]


def num_latent_frames(length: int) -> int:
    """Return the number of latent frames of a video of `length` frames."""
    return (length - 1) // FRAMES_RATIO + 1


def empty_video(
    batch_size: int, length: int, width: int, height: int, channels: int = LATENT_CHANNELS, cell_px: int = CELL_PX
) -> torch.Tensor:
    """Return zeros [batch_size, C, f, h, w] for videos of `length` frames of a size in pixels."""
    return torch.zeros(batch_size, channels, num_latent_frames(length), height // cell_px, width // cell_px)


def latent_of(samples: torch.Tensor) -> Latent:
    return {"samples": samples}


def nothing_like(latent: torch.Tensor) -> torch.Tensor:
    """Return the latent [B, C, f, h, w] that the network sees as zeros."""
    known = Wan22LatentFormat() if latent.shape[1] == WAN22_CHANNELS else WanLatentFormat()
    return known.process_out(torch.zeros_like(latent))


def fitted(frames: torch.Tensor, width: int, height: int, method: str = "bilinear") -> torch.Tensor:
    """Return frames [F, height, width, C], cut to that aspect ratio around the middle, then scaled."""
    return resize_image(frames, width, height, method, "center")


def frames_from(frames: torch.Tensor | None, offset: int) -> torch.Tensor | None:
    """Return frames [F, H, W, C] from one on, None for none."""
    return None if frames is None or frames.shape[0] <= offset else frames[offset:]


def held_to(frames: torch.Tensor, length: int) -> torch.Tensor:
    """Return frames [F, H, W, C] with the last one repeated up to `length` frames."""
    missing = frames[-1:].expand(max(0, length - frames.shape[0]), -1, -1, -1)
    return torch.cat([frames, missing])


def grey_video(length: int, width: int, height: int, channels: int = 3) -> torch.Tensor:
    """Return frames [length, height, width, channels] of grey."""
    return torch.full((length, height, width, channels), GREY)


def per_latent_frame(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask of frames [1, 1, 4 * f, h, w] as one of latent frames [1, 4, f, h, w]."""
    _, _, frames, height, width = mask.shape
    return mask.view(1, frames // FRAMES_RATIO, FRAMES_RATIO, height, width).transpose(1, 2)


@node(
    "EmptyHunyuanLatentVideo",
    display_name="Empty HunyuanVideo 1.0 Latent",
    category="model/latent/hunyuan video",
    python_module="comfy_extras.nodes_hunyuan",
)
def empty_hunyuan_latent_video(
    context: NodeContext,
    *,
    width: Side = 848,
    height: Side = 480,
    length: Length = 25,
    batch_size: Count = 1,
) -> LATENT:
    """Return an empty latent of videos of `length` frames."""
    return {"samples": empty_video(batch_size, length, width, height), "downscale_ratio_spacial": CELL_PX}


@node("TrimVideoLatent", display_name="Trim Video Latent", category="model/latent", python_module=MODULE)
def trim_video_latent(
    context: NodeContext, *, samples: LATENT, trim_amount: Annotated[int, Int(min=0, max=99999)] = 0
) -> LATENT:
    """Return a latent without its first `trim_amount` latent frames."""
    trimmed = samples.copy()
    trimmed["samples"] = samples["samples"][:, :, trim_amount:]
    return trimmed


NODES = (empty_hunyuan_latent_video, trim_video_latent)
