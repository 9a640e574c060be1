"""Layers of the latent UNet that also see along the frames of a video (Blattmann et al. 2023, arXiv 2311.15127).

`B` videos, `F` frames, `C` channels, `h w` latent cells, `S` cells of a frame, `T` tokens, `D` their width, `E` width
of the time embedding. Frames are items of the batch (`B*F`), those of one video in succession. Module names are those
of the original checkpoints.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.unet_layers import (
    BasicTransformerBlock,
    Options,
    ResBlock,
    ResSpec,
    SpatialTransformer,
    TransformerSpec,
    timestep_embedding,
)

KERNEL = (3, 1, 1)  # frames, height, width
PADDING = (1, 0, 0)


class TemporalMixer(nn.Module):
    """Mixture of what a frame alone gives and what it gives among its neighbours, of a learned share."""

    def __init__(self) -> None:
        super().__init__()
        self.mix_factor = nn.Parameter(torch.empty(1))

    def forward(
        self, alone: torch.Tensor, among: torch.Tensor, image_only_indicator: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mix two tensors [B*F, ...]. Where `image_only_indicator` [B, F] is not 0, frames are taken alone."""
        share = torch.sigmoid(self.mix_factor.to(alone.device))
        if image_only_indicator is not None:
            is_alone = image_only_indicator.reshape(-1).bool().to(alone.device)
            share = torch.where(is_alone, torch.ones_like(share), share)
        share = share.view(-1, *(1,) * (alone.ndim - 1))
        return share.to(alone.dtype) * alone + (1.0 - share).to(alone.dtype) * among


class TimeResBlock(nn.Module):
    """A residual block along the frames, [B, C, F, h, w] -> the same. Without an embedding it takes none."""

    def __init__(self, channels: int, embedding_width: int | None = None) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv3d(channels, channels, KERNEL, padding=PADDING)
        )
        if embedding_width is not None:
            self.emb_layers = nn.Sequential(nn.SiLU(), Linear(embedding_width, channels))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(32, channels),
            nn.SiLU(),
            nn.Identity(),  # a dropout in training; it keeps the convolution's name
            nn.Conv3d(channels, channels, KERNEL, padding=PADDING),
        )

    def forward(self, x: torch.Tensor, emb: torch.Tensor | None = None) -> torch.Tensor:
        """Return the result for `x` [B, C, F, h, w] and `emb` [B, F, E]."""
        h = self.in_layers(x)
        if emb is not None:
            h = h + self.emb_layers(emb).transpose(1, 2)[..., None, None]
        out: torch.Tensor = x + self.out_layers(h)
        return out


def as_videos(x: torch.Tensor, num_frames: int) -> torch.Tensor:
    """Return frames [B*F, C, h, w] as videos [B, C, F, h, w]."""
    return x.view(-1, num_frames, *x.shape[1:]).transpose(1, 2)


def as_frames(x: torch.Tensor) -> torch.Tensor:
    """Return videos [B, C, F, h, w] as frames [B*F, C, h, w]."""
    return x.transpose(1, 2).flatten(0, 1)


class VideoResBlock(ResBlock):
    """A residual block of each frame, mixed with one along the frames."""

    def __init__(self, spec: ResSpec, embedding_width: int) -> None:
        super().__init__(spec, embedding_width)
        self.time_stack = TimeResBlock(spec.out_channels, embedding_width)
        self.time_mixer = TemporalMixer()

    def forward(
        self,
        x: torch.Tensor,
        emb: torch.Tensor,
        num_frames: int | None = None,
        image_only_indicator: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the result for `x` [B*F, C, h, w] and `emb` [B*F, E]; by default all frames are of one video."""
        frames = x.shape[0] if num_frames is None else num_frames
        x = super().forward(x, emb)
        among = as_frames(self.time_stack(as_videos(x, frames), emb.view(-1, frames, emb.shape[-1])))
        out: torch.Tensor = self.time_mixer(x, among, image_only_indicator)
        return out


class TemporalTransformer(SpatialTransformer):
    """A transformer of each frame, each block mixed with one along the frames of every cell."""

    def __init__(self, spec: TransformerSpec, heads: int) -> None:
        super().__init__(spec, heads)
        self.channels = spec.channels
        self.time_stack = nn.ModuleList(
            BasicTransformerBlock(spec.channels, spec.context_dim, heads, has_input_ff=True) for _ in range(spec.depth)
        )
        self.time_pos_embed = nn.Sequential(
            Linear(spec.channels, spec.channels * 4), nn.SiLU(), Linear(spec.channels * 4, spec.channels)
        )
        self.time_mixer = TemporalMixer()

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        transformer_options: Options | None = None,
        time_context: torch.Tensor | None = None,
        num_frames: int | None = None,
        image_only_indicator: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the result for `x` [B*F, C, h, w] and `context` [B*F, T, D]; see `VideoResBlock`.

        The blocks along the frames read the first frame's tokens of `time_context`, by default of `context`.
        """
        options = {} if transformer_options is None else transformer_options
        options["activations_shape"] = list(x.shape)
        batch, channels, height, width = x.shape
        frames = batch if num_frames is None else num_frames
        times = context if time_context is None else time_context
        if times is not None:
            times = times[::frames].repeat_interleave(height * width, dim=0)  # [B*S, T, D]
        places = torch.arange(frames, device=x.device).repeat(batch // frames)
        place = self.time_pos_embed(timestep_embedding(places, self.channels).to(x.dtype))[:, None]  # [B*F, 1, C]

        tokens: torch.Tensor = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))  # [B*F, S, C]
        for index, (block, time_block) in enumerate(zip(self.transformer_blocks, self.time_stack, strict=True)):
            options["block_index"] = index
            tokens = block(tokens, context=context, transformer_options=options)
            along = (tokens + place).view(-1, frames, *tokens.shape[1:]).transpose(1, 2).flatten(0, 1)  # [B*S, F, C]
            along = time_block(along, context=times, transformer_options=options)
            among = along.view(-1, tokens.shape[1], frames, channels).transpose(1, 2).reshape(tokens.shape)
            tokens = self.time_mixer(tokens, among, image_only_indicator)
        tokens = self.proj_out(tokens)
        return x + tokens.transpose(1, 2).reshape(batch, channels, height, width)
