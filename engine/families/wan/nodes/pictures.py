"""Pictures that a video begins with, ends with, or is about."""

from __future__ import annotations

from typing import Annotated

import torch

from engine.families.wan.nodes.latents import (
    CATEGORY,
    FRAMES_RATIO,
    MODULE,
    GivenImage,
    Length,
    Seen,
    Side,
    empty_video,
    fitted,
    grey_video,
    latent_of,
    nothing_like,
    num_latent_frames,
    per_latent_frame,
    with_both,
    with_seen,
)
from engine.models.kinds.clip_vision_value import ClipVisionOutput
from engine.models.vae import Vae
from engine.nodes.base import NodeContext, Out, node
from engine.nodes.library.conditioning.conditioning import with_options
from engine.nodes.library.conditioning.picture_conditioning import Count, Negative, Positive, Start
from engine.nodes.sockets import CONDITIONING, IMAGE, VAE, Conditioning, Latent


@node("WanImageToVideo", display_name=None, category=CATEGORY, python_module=MODULE)
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
    """Let a video begin with pictures."""
    latent = empty_video(batch_size, length, width, height)
    if start_image is not None:
        given = fitted(start_image[:length], width, height)
        frames = grey_video(length, width, height, given.shape[-1])
        frames[: given.shape[0]] = given
        concat: torch.Tensor = vae.encode(frames[..., :3])
        mask = torch.ones(1, 1, latent.shape[2], *concat.shape[-2:])
        mask[:, :, : num_latent_frames(given.shape[0])] = 0.0
        positive, negative = with_both(positive, negative, concat_latent_image=concat, concat_mask=mask)
    positive, negative = with_seen(positive, negative, clip_vision_output)
    return positive, negative, latent_of(latent)


def between_pictures(
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    width: int,
    height: int,
    length: int,
    batch_size: int,
    start_image: torch.Tensor | None,
    end_image: torch.Tensor | None,
) -> tuple[Conditioning, Conditioning, Latent]:
    """Return conditionings and an empty latent of a video whose first and last frames are given."""
    latent = empty_video(
        batch_size, length, width, height, channels=vae.latent_channels, cell_px=vae.spacial_compression_encode()
    )
    frames = grey_video(length, width, height)
    mask = torch.ones(1, 1, latent.shape[2] * FRAMES_RATIO, *latent.shape[-2:])
    if start_image is not None:
        given = fitted(start_image[:length, :, :, :3], width, height)
        frames[: given.shape[0]] = given
        mask[:, :, : given.shape[0] + FRAMES_RATIO - 1] = 0.0
    if end_image is not None:
        given = fitted(end_image[-length:, :, :, :3], width, height)
        frames[-given.shape[0] :] = given
        mask[:, :, -given.shape[0] :] = 0.0
    options = {"concat_latent_image": vae.encode(frames), "concat_mask": per_latent_frame(mask)}
    return *with_both(positive, negative, **options), latent_of(latent)


@node("WanFirstLastFrameToVideo", display_name=None, category=CATEGORY, python_module=MODULE)
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
    """Let a video begin and end with pictures."""
    positive, negative, latent = between_pictures(
        positive, negative, vae, width, height, length, batch_size, start_image, end_image
    )
    seen = clip_vision_start_image or clip_vision_end_image
    if clip_vision_start_image is not None and clip_vision_end_image is not None:
        both = (clip_vision_start_image, clip_vision_end_image)
        states = torch.cat([item.penultimate_hidden_states for item in both], dim=-2)
        seen = ClipVisionOutput()
        seen.penultimate_hidden_states = states
    positive, negative = with_seen(positive, negative, seen)
    return positive, negative, latent


@node("WanFunInpaintToVideo", display_name=None, category=CATEGORY, python_module=MODULE)
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
    """Let a video begin and end with pictures, of networks that paint the frames between."""
    positive, negative, latent = between_pictures(
        positive, negative, vae, width, height, length, batch_size, start_image, end_image
    )
    positive, negative = with_seen(positive, negative, clip_vision_output)
    return positive, negative, latent


@node("WanPhantomSubjectToVideo", display_name=None, category=CATEGORY, python_module=MODULE)
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
    """Let a video be about the subjects of pictures, behind its last frame (Liu et al. 2025, arXiv 2502.11079)."""
    latent = latent_of(empty_video(batch_size, length, width, height))
    if images is None:
        return positive, negative, negative, latent
    shown: IMAGE = fitted(images[:length], width, height)
    subjects = torch.cat([vae.encode(image[None, :, :, :3]) for image in shown], dim=2)
    positive, without_text = with_both(positive, negative, time_dim_concat=subjects)
    without_all = with_options(negative, time_dim_concat=nothing_like(subjects))
    return positive, without_text, without_all, latent


NODES = (
    wan_image_to_video, wan_first_last_frame_to_video, wan_fun_inpaint_to_video, wan_phantom_subject_to_video,
)  # fmt: skip
