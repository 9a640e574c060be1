"""`comfy_api.input`: types of values, for annotations and as bases."""

from __future__ import annotations

import torch

from darkroom.engine.media.video import Audio as AudioInput
from darkroom.engine.media.video import VideoInput
from darkroom.engine.nodes.sockets import Latent as LatentInput

__all__ = ["AudioInput", "ImageInput", "LatentInput", "MaskInput", "VideoInput"]

ImageInput = torch.Tensor  # [B, H, W, C]
MaskInput = torch.Tensor  # [B, H, W]
