"""Figures that move as a video does: poses, faces, a background, and frames to go on from."""

from __future__ import annotations

from typing import Annotated

import torch
from torch.nn import functional

from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import (
    FRAMES_RATIO,
    MODULE,
    GivenImage,
    Length,
    Seen,
    Side,
    fitted,
    frames_from,
    grey_video,
    held_to,
    num_latent_frames,
    per_latent_frame,
)
from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, INT, MASK, VAE
from darkroom.engine.nodes.widgets import Int

FACE_PX = 512  # a side of the images of faces


def _mask_of_figure(mask: torch.Tensor, offset: int, length: int, width: int, height: int) -> torch.Tensor | None:
    """Return a mask [1, 1, F, h, w] of cells from a mask of images; None where it ends before `offset`."""
    if mask.shape[0] == 1:
        mask = mask.repeat(length, *(1,) * (mask.ndim - 1))
    elif mask.shape[0] <= offset:
        return None
    else:
        mask = mask[offset:]
    video = mask.unsqueeze(1).movedim(0, 1) if mask.ndim == 3 else mask
    video = video.unsqueeze(1) if video.ndim == 4 else video
    return resize(video[:, :, :length], width, height, "nearest-exact", "center")


@node(
    "WanAnimateToVideo",
    display_name=None,
    category="model/conditioning/wan/animate",
    python_module=MODULE,
    experimental=True,
)
def wan_animate_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 77,
    batch_size: Count = 1,
    clip_vision_output: Seen = None,
    reference_image: GivenImage = None,
    face_video: GivenImage = None,
    pose_video: GivenImage = None,
    continue_motion_max_frames: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)] = 5,
    background_video: GivenImage = None,
    character_mask: Annotated[MASK | None, Optional()] = None,
    continue_motion: GivenImage = None,
    video_frame_offset: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 0,
) -> tuple[
    Positive,
    Negative,
    Start,
    Annotated[INT, Out("trim_latent")],
    Annotated[INT, Out("trim_image")],
    Annotated[INT, Out("video_frame_offset")],
]:
    """Let a figure move as poses and faces do, from a frame of these videos on.

    The latent frames of the reference image come first: `trim_latent` is their number, `trim_image` that of the
    frames gone on from, `video_frame_offset` where the next part begins.
    """
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    if reference_image is None:
        reference_image = torch.zeros(1, height, width, 3)
    reference = guide.encode(reference_image[:length], "area")
    cells = reference.shape[-2:]
    video, num_kept = grey_video(length, width, height), 0
    mask = torch.ones(1, 1, guide.latent.shape[2] * FRAMES_RATIO, *cells)
    if continue_motion is not None:
        earlier = continue_motion[-continue_motion_max_frames:, :, :, :3]
        video_frame_offset = max(0, video_frame_offset - earlier.shape[0])
        earlier = fitted(earlier[-length:], width, height, "area")
        video[: earlier.shape[0]] = earlier
        latent_kept = num_latent_frames(earlier.shape[0])
        num_kept = latent_kept * FRAMES_RATIO - (FRAMES_RATIO - 1)
        mask[:, :, : latent_kept * FRAMES_RATIO] = 0.0
    guide.set_clip_vision(clip_vision_output)
    poses = frames_from(pose_video, video_frame_offset)
    if poses is not None:
        poses = fitted(poses[:length], width, height, "area")[..., :3]
        guide.set(pose_video_latent=vae.encode(held_to(poses, length)))
    faces = frames_from(face_video, video_frame_offset)
    if faces is not None:
        pixels = fitted(faces[:length], FACE_PX, FACE_PX, "area").movedim(-1, 0)[None] * 2.0 - 1.0  # [1, 3, F, H, W]
        guide.positive = with_options(guide.positive, face_video_pixels=pixels)
        guide.negative = with_options(guide.negative, face_video_pixels=pixels * 0.0 - 1.0)
    background = frames_from(background_video, video_frame_offset)
    if background is not None:
        background = fitted(background[:length, :, :, :3], width, height, "area")
        video[num_kept : background.shape[0]] = background[num_kept:]
    if character_mask is not None:
        figure = _mask_of_figure(character_mask, video_frame_offset, length, cells[1], cells[0])
        if figure is not None and figure.shape[2] > num_kept:
            mask[:, :, num_kept : figure.shape[2]] = figure[:, :, num_kept:]
    concat = torch.cat([reference, vae.encode(video)], dim=2)
    known = torch.zeros(1, FRAMES_RATIO, *reference.shape[2:])
    guide.set(concat_latent_image=concat, concat_mask=torch.cat([known, per_latent_frame(mask)], dim=2))
    trimmed = reference.shape[2]
    guide.latent = functional.pad(guide.latent, (0, 0, 0, 0, trimmed, 0))
    return *guide.outputs, trimmed, num_kept, video_frame_offset + length


NODES = (wan_animate_to_video,)
