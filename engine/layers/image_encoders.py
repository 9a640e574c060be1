"""All kinds of image encoders: CLIP's with SigLIP's, DINOv2's and DINOv3's."""

from __future__ import annotations

from darkroom.engine.layers.clip_vision import ClipVisionConfig, ClipVisionModel
from darkroom.engine.layers.dinov2 import Dinov2, Dinov2Config
from darkroom.engine.layers.dinov3 import Dinov3, Dinov3Config

ImageEncoderConfig = ClipVisionConfig | Dinov2Config | Dinov3Config
ImageEncoder = ClipVisionModel | Dinov2 | Dinov3


def image_encoder(config: ImageEncoderConfig) -> ImageEncoder:
    """Return the network of a configuration."""
    if isinstance(config, Dinov3Config):
        return Dinov3(config)
    return Dinov2(config) if isinstance(config, Dinov2Config) else ClipVisionModel(config)
