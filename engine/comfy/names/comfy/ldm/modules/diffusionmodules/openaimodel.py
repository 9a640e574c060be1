"""`comfy.ldm.modules.diffusionmodules.openaimodel`: classes of the UNet's parts, for `isinstance` checks."""

from __future__ import annotations

from darkroom.engine.comfy.names.comfy.ldm.modules.diffusionmodules.util import timestep_embedding
from darkroom.engine.layers.unet import TimestepEmbedSequential
from darkroom.engine.layers.unet import UnetModel as UNetModel
from darkroom.engine.layers.unet_layers import Downsample, ResBlock, SpatialTransformer, Upsample

__all__ = [
    "Downsample",
    "ResBlock",
    "SpatialTransformer",
    "TimestepEmbedSequential",
    "UNetModel",
    "Upsample",
    "timestep_embedding",
]
