"""`comfy.ldm.modules.diffusionmodules.openaimodel`: classes of the UNet's parts, for `isinstance` checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.comfy.names.comfy.ldm.modules.diffusionmodules.util import timestep_embedding
from darkroom.engine.layers.temporal_layers import TemporalTransformer as SpatialVideoTransformer
from darkroom.engine.layers.temporal_layers import VideoResBlock
from darkroom.engine.layers.unet import TimestepEmbedSequential, Video, add_control
from darkroom.engine.layers.unet import UnetModel as UNetModel
from darkroom.engine.layers.unet_layers import Downsample, ResBlock, SpatialTransformer, Upsample

__all__ = [
    "Downsample",
    "ResBlock",
    "SpatialTransformer",
    "SpatialVideoTransformer",
    "TimestepBlock",
    "TimestepEmbedSequential",
    "UNetModel",
    "Upsample",
    "VideoResBlock",
    "apply_control",
    "forward_timestep_embed",
    "timestep_embedding",
]

TimestepBlock = ResBlock  # the only layers that take an embedding of the timestep beside the values
apply_control = add_control


def forward_timestep_embed(
    ts: TimestepEmbedSequential,
    x: torch.Tensor,
    emb: torch.Tensor,
    context: torch.Tensor | None = None,
    transformer_options: dict[str, Any] | None = None,
    output_shape: Sequence[int] | None = None,
    time_context: torch.Tensor | None = None,
    num_video_frames: int | None = None,
    image_only_indicator: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the output of the layers of one block."""
    video = Video(num_video_frames, time_context, image_only_indicator)
    return TimestepEmbedSequential.forward(ts, x, emb, context, transformer_options, output_shape, video)
