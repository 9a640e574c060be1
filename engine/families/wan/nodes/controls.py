"""Videos that a video follows: controls of Fun networks, and of VACE with masks and a reference image.

`F` frames, `f` latent frames, `h w` latent cells, `C` channels.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch.nn import functional

from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import (
    CELL_PX,
    GREY,
    LATENT_CHANNELS,
    MODULE,
    GivenImage,
    Length,
    Seen,
    Side,
    fitted,
    grey_video,
    nothing_like,
    per_latent_frame,
)
from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, INT, MASK, VAE
from darkroom.engine.nodes.widgets import Float


def _placed(latent: torch.Tensor, first_channel: int, frames: torch.Tensor) -> None:
    """Put the latent of frames [1, C, f, h, w] into the channels from `first_channel` on, as far as it reaches."""
    part = frames[:, :, : latent.shape[2]]
    latent[:, first_channel : first_channel + part.shape[1], : part.shape[2]] = part


@node("WanFunControlToVideo", display_name=None, category="model/conditioning/wan/fun control", python_module=MODULE)
def wan_fun_control_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    clip_vision_output: Seen = None,
    start_image: GivenImage = None,
    control_video: GivenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video follow a control, and begin with images."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    concat = nothing_like(guide.latent).repeat(1, 2, 1, 1, 1)
    for first_channel, frames in ((LATENT_CHANNELS, start_image), (0, control_video)):
        if frames is not None:
            _placed(concat, first_channel, guide.encode(frames[:length]))
    guide.set(concat_latent_image=concat)
    guide.set_clip_vision(clip_vision_output)
    return guide.outputs


@node("Wan22FunControlToVideo", display_name=None, category="model/conditioning/wan/fun control", python_module=MODULE)
def wan22_fun_control_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    ref_image: GivenImage = None,
    control_video: GivenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video of Wan 2.2 follow a control, and show what is in a reference image."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size, follows_vae=True)
    concat = nothing_like(guide.latent).repeat(1, 2, 1, 1, 1)
    if control_video is not None:
        _placed(concat, 0, guide.encode(control_video[:length]))
    mask = per_latent_frame(guide.frame_mask())
    guide.set(concat_latent_image=concat, concat_mask=mask, concat_mask_index=vae.latent_channels)
    if ref_image is not None:
        guide.append("reference_latents", guide.encode(ref_image[:1]))
    return guide.outputs


def _lengthened(frames: torch.Tensor, length: int, value: float) -> torch.Tensor:
    """Return `length` frames [F, H, W, C], missing ones of one value."""
    return functional.pad(frames, (0, 0, 0, 0, 0, 0, 0, max(0, length - frames.shape[0])), value=value)


def _cells_of_mask(mask: torch.Tensor, frames: int) -> torch.Tensor:
    """Return a mask of pixels [F, H, W, 1] as [64, frames, h, w]: the pixels of a cell beside each other."""
    length, height, width, _ = mask.shape
    rows, columns = height // CELL_PX, width // CELL_PX
    parts = mask.view(length, rows, CELL_PX, columns, CELL_PX).permute(2, 4, 0, 1, 3)
    cells = parts.reshape(1, CELL_PX**2, length, rows, columns)
    return functional.interpolate(cells, size=(frames, rows, columns), mode="nearest-exact")[0]


@node("WanVaceToVideo", display_name=None, category="model/conditioning/wan/vace", python_module=MODULE)
def wan_vace_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    strength: Annotated[float, Float(min=0.0, max=1000.0, step=0.01)] = 1.0,
    control_video: GivenImage = None,
    control_masks: Annotated[MASK | None, Optional()] = None,
    reference_image: GivenImage = None,
) -> tuple[Positive, Negative, Start, Annotated[INT, Out("trim_latent")]]:
    """Let a video follow a control where a mask is 1, and keep it elsewhere.

    The latent frames of the reference image come first; `trim_latent` is their number.
    """
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    if control_video is None:
        video = grey_video(length, width, height)
    else:
        video = _lengthened(fitted(control_video[:length, :, :, :3], width, height), length, GREY)
    if control_masks is None:
        mask = torch.ones(length, height, width, 1)
    else:
        channelled = control_masks.unsqueeze(1) if control_masks.ndim == 3 else control_masks
        mask = resize(channelled[:length], width, height, "bilinear", "center").movedim(1, -1)
        mask = _lengthened(mask, length, 1.0)
    moved = video - GREY
    kept, drawn = vae.encode(moved * (1 - mask) + GREY), vae.encode(moved * mask + GREY)
    control, cells = torch.cat([kept, drawn], dim=1), _cells_of_mask(mask, guide.latent.shape[2])
    trimmed = 0
    if reference_image is not None:
        reference = guide.encode(reference_image[:1])
        trimmed = reference.shape[2]
        control = torch.cat([torch.cat([reference, nothing_like(reference)], dim=1), control], dim=2)
        cells = functional.pad(cells, (0, 0, 0, 0, trimmed, 0))
    for name, item in (("vace_frames", control), ("vace_mask", cells[None]), ("vace_strength", strength)):
        guide.append(name, item)
    guide.latent = functional.pad(guide.latent, (0, 0, 0, 0, trimmed, 0))
    return *guide.outputs, trimmed


NODES = (wan_fun_control_to_video, wan22_fun_control_to_video, wan_vace_to_video)
