"""Nodes that encode an image for TRELLIS 2 and Pixal3D, and the empty latent of their first stage."""

from __future__ import annotations

import math
from typing import Annotated

import torch

from darkroom.engine.families.trellis2.cells import CHANNELS
from darkroom.engine.families.trellis2.denoiser import LARGE_IMAGE, PROJECTED
from darkroom.engine.families.trellis2.nodes.projection import LARGE_PX, SMALL_PX, ImageFeatures
from darkroom.engine.families.trellis2.transformer import GRID_SIDE
from darkroom.engine.images.pixels import colours_of, resize
from darkroom.engine.layers.dinov3 import Dinov3Config
from darkroom.engine.models.kinds.clip_vision_value import ClipVision
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive
from darkroom.engine.nodes.sockets import CLIP_VISION, IMAGE, LATENT, Conditioning
from darkroom.engine.nodes.widgets import Float

MODULE = "comfy_extras.nodes_trellis2"
CATEGORY = "model/conditioning/trellis2"
FEATURES = "proj_feat_pack"  # key of a condition, as ComfyUI's nodes name it


def encoded(encoder: ClipVision, images: torch.Tensor, side_px: int, context: NodeContext) -> torch.Tensor:
    """Return the tokens [B, T, D] of images [B, 3, H, W], 0..1, squeezed to squares, one by one. On the CPU."""
    mean, deviation = (torch.tensor(item).view(3, 1, 1) for item in (encoder.image_mean, encoder.image_std))
    tokens = []
    for image in torch.split(images, 1):
        context.cancel.check()
        pixels = (resize(image, side_px, side_px, "lanczos") - mean) / deviation
        found: torch.Tensor = encoder.model(pixels.to(encoder.load_device), skip_norm_elementwise=True)[0]
        tokens.append(found.cpu())
    return torch.cat(tokens)


def images_for(encoder: ClipVision, image: torch.Tensor) -> torch.Tensor:
    """Return images [B, 3, H, W], 0..1. Raises ValueError for an encoder of another kind, and for images of greys."""
    if not isinstance(encoder.patcher.model.config, Dinov3Config):
        raise ValueError("clip_vision_model: no DINOv3; got an encoder of another kind, expected DINOv3 (ViT-L/16)")
    return colours_of(image, "image").movedim(-1, 1).float().clamp(0.0, 1.0)


@node("Trellis2Conditioning", display_name=None, category=CATEGORY, python_module=MODULE)
@torch.no_grad()
def trellis2_conditioning(
    context: NodeContext, *, clip_vision_model: CLIP_VISION, image: IMAGE
) -> tuple[Positive, Negative]:
    """Encode images at 512 and at 1024 pixels; the negative side has zeros in place of their tokens."""
    images = images_for(clip_vision_model, image)
    small, large = (encoded(clip_vision_model, images, side, context) for side in (SMALL_PX, LARGE_PX))
    return [[small, {LARGE_IMAGE: large}]], [[torch.zeros_like(small), {LARGE_IMAGE: torch.zeros_like(large)}]]


@node("Pixal3DConditioning", display_name=None, category=CATEGORY, python_module=MODULE)
@torch.no_grad()
def pixal3d_conditioning(
    context: NodeContext,
    *,
    clip_vision_model: CLIP_VISION,
    image: IMAGE,
    camera_angle_x: Annotated[float, Float(min=1.0, max=170.0, step=0.01, extra={"display_name": "fov"})] = 49.13,
) -> tuple[Positive, Negative]:
    """Encode images as `Trellis2Conditioning` does, with their features to be projected; an angle in degrees."""
    images = images_for(clip_vision_model, image)
    tokens, maps = [], []
    for side_px in (SMALL_PX, LARGE_PX):
        found = encoded(clip_vision_model, images, side_px, context)
        patches = side_px // clip_vision_model.patcher.model.config.patch_px
        tokens.append(found[:, : -(patches**2)])
        maps.append(found[:, -(patches**2) :].transpose(1, 2).reshape(len(found), -1, patches, patches))
    features = ImageFeatures(clip_vision_model, images, maps[0], maps[1], math.radians(camera_angle_x))
    shared = {FEATURES: features, PROJECTED: features.of_structure()}
    (small, large), (no_small, no_large) = tokens, (torch.zeros_like(item) for item in tokens)
    return [[small, {LARGE_IMAGE: large, **shared}]], [[no_small, {LARGE_IMAGE: no_large, **shared}]]


def features_of(conditioning: Conditioning) -> ImageFeatures | None:
    """Return the features of a conditioning that are to be projected; None of one without, which is TRELLIS 2's."""
    if not conditioning:
        return None
    features = conditioning[0][1].get(FEATURES)
    return features if isinstance(features, ImageFeatures) else None


@node("EmptyTrellis2LatentStructure", display_name=None, category="model/latent/trellis", python_module=MODULE)
def empty_trellis2_latent_structure(context: NodeContext, *, batch_size: Count = 1) -> LATENT:
    """Return empty latents of structures."""
    return {"samples": torch.zeros(batch_size, CHANNELS, *[GRID_SIDE] * 3), "type": "trellis2"}


NODES = (trellis2_conditioning, pixal3d_conditioning, empty_trellis2_latent_structure)
