"""Node classes made for Stable Video Diffusion and SV3D: a video from its first image, an orbit around an object."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import (
    VIEWS_MODULE,
    Count,
    Negative,
    Positive,
    Side,
    Start,
    empty_latent,
    image_pair,
    image_seen,
)
from darkroom.engine.nodes.sockets import CLIP_VISION, IMAGE, VAE
from darkroom.engine.nodes.widgets import Float, Int

ORBIT_DEGREES = 360


@node(
    "SVD_img2vid_Conditioning",
    category="model/conditioning/stable video",
    python_module="comfy_extras.nodes_video_model",
    advanced=("motion_bucket_id", "augmentation_level"),
)
def svd_img2vid_conditioning(
    context: NodeContext,
    *,
    clip_vision: CLIP_VISION,
    init_image: IMAGE,
    vae: VAE,
    width: Side = 1024,
    height: Side = 576,
    video_frames: Count = 14,
    motion_bucket_id: Annotated[int, Int(min=1, max=1023)] = 127,
    fps: Annotated[int, Int(min=1, max=1024)] = 6,
    augmentation_level: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 0.0,
) -> tuple[Positive, Negative, Start]:
    """Make conditioning of a video's first image. The noise of `augmentation_level` differs from run to run."""
    embedding, pixels = image_seen(clip_vision, init_image, width, height)
    if augmentation_level > 0:
        pixels = pixels + torch.randn_like(pixels) * augmentation_level
    told = {"motion_bucket_id": motion_bucket_id, "fps": fps, "augmentation_level": augmentation_level}
    positive, negative = image_pair(embedding, torch.zeros_like(embedding), vae.encode(pixels), **told)
    return positive, negative, {"samples": empty_latent(video_frames, width, height)}


@node("SV3D_Conditioning", display_name=None, category="model/conditioning/stable video 3d", python_module=VIEWS_MODULE)
def sv3d_conditioning(
    context: NodeContext,
    *,
    clip_vision: CLIP_VISION,
    init_image: IMAGE,
    vae: VAE,
    width: Side = 576,
    height: Side = 576,
    video_frames: Count = 21,
    elevation: Annotated[float, Float(min=-90.0, max=90.0, step=0.1, round=False)] = 0.0,
) -> tuple[Positive, Negative, Start]:
    """Make conditioning of an orbit once around an object, in frames of equal steps."""
    embedding, pixels = image_seen(clip_vision, init_image, width, height)
    step = ORBIT_DEGREES / (max(video_frames, 2) - 1)
    poses = {
        "elevation": [elevation] * video_frames,
        "azimuth": [step * frame for frame in range(video_frames)],
    }
    positive, negative = image_pair(embedding, torch.zeros_like(embedding), vae.encode(pixels), **poses)
    return positive, negative, {"samples": empty_latent(video_frames, width, height)}


NODES = (svd_img2vid_conditioning, sv3d_conditioning)
