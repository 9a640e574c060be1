"""Both kinds of picture encoders: CLIP's with SigLIP's, and DINOv2's."""

from __future__ import annotations

from engine.architectures.clip_vision import ClipVisionConfig, ClipVisionModel
from engine.architectures.dinov2 import Dinov2, Dinov2Config

PictureEncoderConfig = ClipVisionConfig | Dinov2Config


def picture_encoder(config: PictureEncoderConfig) -> ClipVisionModel | Dinov2:
    """Return the network of a configuration."""
    return Dinov2(config) if isinstance(config, Dinov2Config) else ClipVisionModel(config)
