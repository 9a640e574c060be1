"""Images that a video begins with, ends with, or is about."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import (
    MODULE,
    GivenImage,
    Length,
    Seen,
    Side,
    fitted,
    grey_video,
    nothing_like,
    num_latent_frames,
    per_latent_frame,
)
from darkroom.engine.models.kinds.clip_vision_value import ClipVisionOutput
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING, VAE


def begin_with(guide: VideoGuide, images: torch.Tensor) -> torch.Tensor:
    """Let a video begin with images [F, H, W, C], and return the latent [1, C, f, h, w] of them and grey."""
    given = fitted(images[: guide.length], guide.width, guide.height)
    frames = grey_video(guide.length, guide.width, guide.height, given.shape[-1])
    frames[: given.shape[0]] = given
    concat: torch.Tensor = guide.vae.encode(frames[..., :3])
    mask = torch.ones(1, 1, guide.latent.shape[2], *concat.shape[-2:])
    mask[:, :, : num_latent_frames(given.shape[0])] = 0.0
    guide.set(concat_latent_image=concat, concat_mask=mask)
    return concat


@node("WanImageToVideo", display_name=None, category="model/conditioning/wan", python_module=MODULE)
def wan_image_to_video(
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
) -> tuple[Positive, Negative, Start]:
    """Let a video begin with images."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    if start_image is not None:
        begin_with(guide, start_image)
    guide.set_clip_vision(clip_vision_output)
    return guide.outputs


def between_images(guide: VideoGuide, start_image: torch.Tensor | None, end_image: torch.Tensor | None) -> None:
    """Set the first and last frames of a video."""
    frames, mask = grey_video(guide.length, guide.width, guide.height), guide.frame_mask()
    if start_image is not None:
        given = fitted(start_image[: guide.length, :, :, :3], guide.width, guide.height)
        frames[: given.shape[0]] = given
        mask = guide.frame_mask(given.shape[0])
    if end_image is not None:
        given = fitted(end_image[-guide.length :, :, :, :3], guide.width, guide.height)
        frames[-given.shape[0] :] = given
        mask[:, :, -given.shape[0] :] = 0.0
    guide.set(concat_latent_image=guide.vae.encode(frames), concat_mask=per_latent_frame(mask))


@node("WanFirstLastFrameToVideo", display_name=None, category="model/conditioning/wan", python_module=MODULE)
def wan_first_last_frame_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    clip_vision_start_image: Seen = None,
    clip_vision_end_image: Seen = None,
    start_image: GivenImage = None,
    end_image: GivenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin and end with images."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size, follows_vae=True)
    between_images(guide, start_image, end_image)
    seen = clip_vision_start_image or clip_vision_end_image
    if clip_vision_start_image is not None and clip_vision_end_image is not None:
        both = (clip_vision_start_image, clip_vision_end_image)
        states = torch.cat([item.penultimate_hidden_states for item in both], dim=-2)
        seen = ClipVisionOutput()
        seen.penultimate_hidden_states = states
    guide.set_clip_vision(seen)
    return guide.outputs


@node("WanFunInpaintToVideo", display_name=None, category="model/conditioning/wan/fun inpaint", python_module=MODULE)
def wan_fun_inpaint_to_video(
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
    end_image: GivenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin and end with images, of networks that paint the frames between."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size, follows_vae=True)
    between_images(guide, start_image, end_image)
    guide.set_clip_vision(clip_vision_output)
    return guide.outputs


@node(
    "WanPhantomSubjectToVideo",
    display_name=None,
    category="model/conditioning/wan/phantom subject",
    python_module=MODULE,
)
def wan_phantom_subject_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    images: GivenImage = None,
) -> tuple[
    Positive, Annotated[CONDITIONING, Out("negative_text")], Annotated[CONDITIONING, Out("negative_img_text")], Start
]:
    """Let a video be about the subjects of images, behind its last frame (Liu et al. 2025, arXiv 2502.11079)."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    without_all = negative
    if images is not None:
        subjects = torch.cat([guide.encode(image[None]) for image in images[:length]], dim=2)
        guide.set(time_dim_concat=subjects)
        without_all = with_options(negative, time_dim_concat=nothing_like(subjects))
    with_all, without_text, latent = guide.outputs
    return with_all, without_text, without_all, latent


NODES = (
    wan_image_to_video, wan_first_last_frame_to_video, wan_fun_inpaint_to_video, wan_phantom_subject_to_video,
)  # fmt: skip
