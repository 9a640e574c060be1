"""`comfy.ldm.modules.diffusionmodules.openaimodel`: classes of the UNet's parts, for `isinstance` checks."""

from __future__ import annotations

from engine.architectures.latent_unet import TimestepEmbedSequential
from engine.architectures.latent_unet import UnetModel as UNetModel
from engine.architectures.latent_unet_layers import Downsample, ResBlock, SpatialTransformer, Upsample
from engine.custom_nodes.compat.names.comfy.ldm.modules.diffusionmodules.util import timestep_embedding

__all__ = [
    "Downsample",
    "ResBlock",
    "SpatialTransformer",
    "TimestepEmbedSequential",
    "UNetModel",
    "Upsample",
    "timestep_embedding",
]
