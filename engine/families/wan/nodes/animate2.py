"""Figures that move as the one of another video, by Wan-Animate 2, and how what is read of that video is kept."""

from __future__ import annotations

from typing import Annotated, cast

import torch
from torch.nn import functional

from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE
from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import (
    MODULE,
    GivenImage,
    Length,
    Seen,
    Side,
    fitted,
    grey_video,
    held_to,
    num_latent_frames,
)
from darkroom.engine.families.wan.pose_cache import Place, keeping_poses
from darkroom.engine.families.wan.pose_states import OPTION, Storage
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, INT, MODEL, VAE, Conditioning
from darkroom.engine.nodes.widgets import Combo, Float, Int

CATEGORY = "model/conditioning/wan/animate"
CONTINUED_FRAMES = 1  # of earlier frames that the video goes on from

Strength = Annotated[float, Float(min=0.0, max=10.0, step=0.01)]
Share = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]


def _within(conditioning: Conditioning, options: dict[str, object], start: float, end: float) -> Conditioning:
    """Return conditioning with options in a share of the sampling, and without them before and behind it."""
    if start <= 0.0 and end >= 1.0:
        return with_options(conditioning, **options)
    parts = with_options(conditioning, **options, start_percent=start, end_percent=end)
    if start > 0.0:
        parts = parts + with_options(conditioning, start_percent=0.0, end_percent=start)
    if end < 1.0:
        parts = parts + with_options(conditioning, start_percent=end, end_percent=1.0)
    return parts


@node("WanAnimate2ToVideo", display_name=None, category=CATEGORY, python_module=MODULE, experimental=True)
def wan_animate2_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    reference_image: GivenImage = None,
    pose_video: GivenImage = None,
    clip_vision_output: Seen = None,
    positive_pose: Annotated[CONDITIONING | None, Optional()] = None,
    clip_vision_output_pose: Seen = None,
    continue_motion: GivenImage = None,
    video_frame_offset: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 0,
    pose_strength: Strength = 1.0,
    pose_start_percent: Share = 0.0,
    pose_end_percent: Share = 1.0,
    reference_image_strength: Strength = 1.0,
) -> tuple[
    Positive,
    Negative,
    Start,
    Annotated[INT, Out("trim_latent")],
    Annotated[INT, Out("trim_image")],
    Annotated[INT, Out("video_frame_offset")],
]:
    """Let the figure of an image move as that of a video, from a frame of it on.

    The latent frame of the reference image comes first: `trim_latent` is the number of such frames, `trim_image` that
    of the frames gone on from, `video_frame_offset` where the next part begins. Raises ValueError for a share of the
    sampling that ends before it begins, and for poses that end before the offset.
    """
    if pose_start_percent > pose_end_percent:
        raise ValueError(
            f"pose_start_percent: poses would end before they begin; got {pose_start_percent}, expected at most "
            f"pose_end_percent, {pose_end_percent}"
        )
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    if reference_image is None:
        reference_image = torch.zeros(1, height, width, 3)
    reference = guide.encode(reference_image[:1], "area")
    trimmed = reference.shape[2]
    video, num_kept, latent_kept = grey_video(length, width, height), 0, 0
    if continue_motion is not None:
        earlier = continue_motion[-CONTINUED_FRAMES:, :, :, :3]
        video_frame_offset = max(0, video_frame_offset - earlier.shape[0])
        video[: earlier.shape[0]] = fitted(earlier[-length:], width, height, "area")
        latent_kept = num_latent_frames(earlier.shape[0])
        num_kept = earlier.shape[0]
    poses: dict[str, object] = {}
    if pose_video is not None:
        if pose_video.shape[0] <= video_frame_offset:
            raise ValueError(
                f"pose_video: it ends before video_frame_offset; got {pose_video.shape[0]} frames, expected more than "
                f"{video_frame_offset}"
            )
        frames = fitted(pose_video[video_frame_offset:][:length, :, :, :3], width, height, "area")
        poses["pose_video_latent"] = vae.encode(held_to(frames, length))
    guide.latent = functional.pad(guide.latent, (0, 0, 0, 0, trimmed, 0))
    mask = torch.ones(1, 1, *guide.latent.shape[2:])
    mask[:, :, : trimmed + latent_kept] = 0.0
    guide.set(concat_latent_image=torch.cat([reference, vae.encode(video)], dim=2), concat_mask=mask)
    guide.set_clip_vision(clip_vision_output)
    if reference_image_strength != 1.0:
        guide.set(reference_strength=reference_image_strength)
    seen = clip_vision_output if clip_vision_output_pose is None else clip_vision_output_pose
    if seen is not None:
        poses["clip_vision_output_pose"] = seen
    of_poses = positive if positive_pose is None else positive_pose
    if of_poses:
        poses["cross_attn_pose"] = of_poses[0][0]
    if pose_strength != 1.0:
        poses["pose_strength"] = pose_strength
    share = (pose_start_percent, pose_end_percent)
    guide.positive, guide.negative = (_within(side, poses, *share) for side in (guide.positive, guide.negative))
    return *guide.outputs, trimmed, num_kept, video_frame_offset + length


@node("WanAnimate2Cache", display_name=None, category=CATEGORY, python_module=MODULE, experimental=True)
def wan_animate2_cache(
    context: NodeContext,
    *,
    model: MODEL,
    device: Annotated[str, Combo(("cpu", "gpu"))] = "cpu",
    dtype: Annotated[str, Combo(("default", "int8", "int4"))] = "default",
) -> MODEL:
    """Keep what enters each block for the video of poses between steps: it is the same in each.

    It is kept in RAM or on the device that computes, where there is room, else computed in every step. Without `int8`
    and `int4`, which round it, the video is the one that is drawn with nothing kept.
    """
    patched = model.clone()
    run = keeping_poses(cast(Place, device), cast(Storage, dtype), context.files.free_bytes)
    patched.remove_wrappers_with_key(OUTER_SAMPLE, OPTION)
    patched.add_wrapper_with_key(OUTER_SAMPLE, OPTION, run)
    return patched


NODES = (wan_animate2_to_video, wan_animate2_cache)
