"""`comfy.ldm.modules.diffusionmodules.openaimodel`: the classes of the UNet's parts, to tell them apart by."""

from __future__ import annotations

from engine.compat.names.comfy.ldm.modules.diffusionmodules.util import timestep_embedding
from engine.models.unet import Downsample, ResBlock, SpatialTransformer, TimestepEmbedSequential, Upsample
from engine.models.unet import UnetModel as UNetModel

__all__ = [
    "Downsample",
    "ResBlock",
    "SpatialTransformer",
    "TimestepEmbedSequential",
    "UNetModel",
    "Upsample",
    "timestep_embedding",
]
