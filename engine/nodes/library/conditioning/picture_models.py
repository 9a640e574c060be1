"""Nodes of networks that take a picture in place of a prompt: videos, orbits and other views of an object.

`B` pictures, `F` frames, `D` width of a picture's embedding.
"""

from __future__ import annotations

from typing import Annotated

import torch

from engine.images.pixels import resize_image
from engine.nodes.base import Float, Int, ModelFile, NodeContext, Out, node
from engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from engine.nodes.sockets import CLIP_VISION, CONDITIONING, IMAGE, LATENT, MODEL, VAE, Conditioning

VIDEO_MODULE = "comfy_extras.nodes_video_model"
VIEWS_MODULE = "comfy_extras.nodes_stable3d"
VIEWS_CATEGORY = "conditioning/3d_models"
LATENT_CHANNELS = 4
CELL_PX = 8
ORBIT_DEGREES = 360

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=8)]
Count = Annotated[int, Int(min=1, max=4096)]
Angle = Annotated[float, Float(min=-180.0, max=180.0, step=0.1, round=False)]
Positive = Annotated[CONDITIONING, Out("positive")]
Negative = Annotated[CONDITIONING, Out("negative")]
Start = Annotated[LATENT, Out("latent")]


@node(
    "ImageOnlyCheckpointLoader",
    display_name="Image Only Checkpoint Loader (img2vid model)",
    category="loaders/video_models",
    python_module=VIDEO_MODULE,
)
def image_only_checkpoint_loader(
    context: NodeContext, *, ckpt_name: Annotated[str, ModelFile("checkpoints")]
) -> tuple[MODEL, CLIP_VISION, VAE]:
    """Load a checkpoint with its picture encoder, None where it has none, instead of a text encoder."""
    model, _, vae = context.models.checkpoint(ckpt_name)
    return model, context.models.checkpoint_vision(ckpt_name), vae


def _seen(clip_vision: CLIP_VISION, init_image: IMAGE, width: int, height: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embedding [1, B, D] of pictures, and their colours [B, height, width, 3]."""
    embedding: torch.Tensor = clip_vision.encode_image(init_image).image_embeds.unsqueeze(0)
    pixels = resize_image(init_image, width, height, "bilinear", "center")[:, :, :, :3]
    return embedding, pixels


def _pair(
    tokens: torch.Tensor, nothing: torch.Tensor, latent: torch.Tensor, **options: object
) -> tuple[Conditioning, Conditioning]:
    """Return the conditioning of a picture, and that of none: zeros in place of tokens and latent."""
    positive = [[tokens, {**options, "concat_latent_image": latent}]]
    negative = [[nothing, {**options, "concat_latent_image": torch.zeros_like(latent)}]]
    return positive, negative


def _empty(count: int, width: int, height: int) -> torch.Tensor:
    return torch.zeros([count, LATENT_CHANNELS, height // CELL_PX, width // CELL_PX])


@node(
    "SVD_img2vid_Conditioning",
    category="conditioning/video_models",
    python_module=VIDEO_MODULE,
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
    """Make conditioning of a video's first picture. The noise of `augmentation_level` differs from run to run."""
    embedding, pixels = _seen(clip_vision, init_image, width, height)
    if augmentation_level > 0:
        pixels = pixels + torch.randn_like(pixels) * augmentation_level
    told = {"motion_bucket_id": motion_bucket_id, "fps": fps, "augmentation_level": augmentation_level}
    positive, negative = _pair(embedding, torch.zeros_like(embedding), vae.encode(pixels), **told)
    return positive, negative, {"samples": _empty(video_frames, width, height)}


@node("SV3D_Conditioning", display_name=None, category=VIEWS_CATEGORY, python_module=VIEWS_MODULE)
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
    embedding, pixels = _seen(clip_vision, init_image, width, height)
    step = ORBIT_DEGREES / (max(video_frames, 2) - 1)
    poses = {
        "elevation": [elevation] * video_frames,
        "azimuth": [step * frame for frame in range(video_frames)],
    }
    positive, negative = _pair(embedding, torch.zeros_like(embedding), vae.encode(pixels), **poses)
    return positive, negative, {"samples": _empty(video_frames, width, height)}


def camera(elevation: float, azimuth: float) -> torch.Tensor:
    """Return a camera [1, 1, 4] relative to the picture's, from angles in degrees: Zero-1-to-3's, elevation last."""
    up, around = torch.tensor([float(elevation)]), torch.tensor([float(azimuth)])
    around = torch.deg2rad(around)
    parts = (torch.deg2rad((90 - up) - 90), around.sin(), around.cos(), torch.deg2rad(90 - torch.zeros_like(up)))
    return torch.stack(parts, dim=-1).unsqueeze(1)


@node("StableZero123_Conditioning", display_name=None, category=VIEWS_CATEGORY, python_module=VIEWS_MODULE)
def stable_zero123_conditioning(
    context: NodeContext,
    *,
    clip_vision: CLIP_VISION,
    init_image: IMAGE,
    vae: VAE,
    width: Side = 256,
    height: Side = 256,
    batch_size: Count = 1,
    elevation: Angle = 0.0,
    azimuth: Angle = 0.0,
) -> tuple[Positive, Negative, Start]:
    """Make conditioning of an object's picture and the camera of another view."""
    embedding, pixels = _seen(clip_vision, init_image, width, height)
    seen_from = camera(elevation, azimuth).to(embedding).expand(1, embedding.shape[1], -1)
    tokens = torch.cat([embedding, seen_from], dim=-1)
    positive, negative = _pair(tokens, torch.zeros_like(embedding), vae.encode(pixels))
    return positive, negative, {"samples": _empty(batch_size, width, height)}


@node("StableZero123_Conditioning_Batched", display_name=None, category=VIEWS_CATEGORY, python_module=VIEWS_MODULE)
def stable_zero123_conditioning_batched(
    context: NodeContext,
    *,
    clip_vision: CLIP_VISION,
    init_image: IMAGE,
    vae: VAE,
    width: Side = 256,
    height: Side = 256,
    batch_size: Count = 1,
    elevation: Angle = 0.0,
    azimuth: Angle = 0.0,
    elevation_batch_increment: Angle = 0.0,
    azimuth_batch_increment: Angle = 0.0,
) -> tuple[Positive, Negative, Start]:
    """Make conditioning of several views, whose cameras differ by equal steps and whose noise is the same."""
    embedding, pixels = _seen(clip_vision, init_image, width, height)
    cameras = torch.cat(
        [
            camera(elevation + index * elevation_batch_increment, azimuth + index * azimuth_batch_increment)
            for index in range(batch_size)
        ]
    )
    tokens = torch.cat([embedding.expand(batch_size, -1, -1), cameras.to(embedding)], dim=-1)
    positive, negative = _pair(tokens, torch.zeros_like(embedding), vae.encode(pixels))
    return positive, negative, {"samples": _empty(batch_size, width, height), "batch_index": [0] * batch_size}


NODES = (
    image_only_checkpoint_loader, svd_img2vid_conditioning, sv3d_conditioning, stable_zero123_conditioning,
    stable_zero123_conditioning_batched,
)  # fmt: skip
