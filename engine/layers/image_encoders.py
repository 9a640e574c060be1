"""Both kinds of image encoders: CLIP's with SigLIP's, and DINOv2's."""

from __future__ import annotations

from darkroom.engine.layers.clip_vision import ClipVisionConfig, ClipVisionModel
from darkroom.engine.layers.dinov2 import Dinov2, Dinov2Config

ImageEncoderConfig = ClipVisionConfig | Dinov2Config


def image_encoder(config: ImageEncoderConfig) -> ClipVisionModel | Dinov2:
    """Return the network of a configuration."""
    return Dinov2(config) if isinstance(config, Dinov2Config) else ClipVisionModel(config)
