"""The decoder of LTX-2.4's autoencoder: it draws the pixels of a video in one step, guided by the latent.

Stages of attention to neighbors enlarge the latent to a context, then blocks remove the noise of patches of pixels
with it. Videos are `[B, F, h, w, D]`, channels last; `B` batch, `F` frames, `h w` cells, `D` channels. Module names are
those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.neighborhood_attention import neighborhood_attention
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.transformer_layers import GatedActivation, RotaryHeads, RotaryLayout
from darkroom.engine.layers.unet_layers import timestep_embedding
from darkroom.engine.layers.video_cells import Stride, cells_of, patched, unpatched

THETA = 10000.0
TIME_DIM = 256
NUM_MODULATIONS = 7  # of which gates are folded into the weights
CHUNK_CELLS = 1 << 16  # that a feed-forward layer computes at once

Step = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class EnlargingStage:
    """A stage of `num_blocks` blocks of attention within `window`; each cell becomes `stride` cells."""

    channels: int
    num_blocks: int
    window: Stride
    stride: Stride
    leaving: int


@dataclass(frozen=True, slots=True)
class DiffusionDecoderConfig:
    """Configuration of the decoder. `prediction`: the pixels (`x0`) or the velocity (`v`) that the blocks give."""

    stages: tuple[EnlargingStage, ...]
    channels: int = 256
    num_blocks: int = 8
    window: Stride = (11, 11, 11)
    latent_channels: int = 128
    head_dim: int = 64
    patch: int = 4
    time_dim: int = 384
    num_steps: int = 1
    time_scale: float = 1000.0
    prediction: Literal["x0", "v"] = "x0"

    @property
    def frames_ratio(self) -> int:
        ratio = 1
        for stage in self.stages:
            ratio *= stage.stride[0]
        return ratio

    @property
    def repeated_frames(self) -> int:
        """Latent frames that the last one is repeated as behind the end, so that the end is no border."""
        return self.stages[0].window[0] // 2 * 2


def axis_dims(head_dim: int) -> tuple[int, int, int]:
    """Return the channels of a head that rotate by frame, row and column."""
    frames = head_dim // 4 // 2 * 2
    side = (head_dim - frames) // 2
    if side % 2:
        frames -= 2
        side = (head_dim - frames) // 2
    return frames, side, side


def turns_of(sizes: torch.Size, head_dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [F, h, w, 1, head_dim / 2] of the positions of cells."""
    angles = []
    for axis, (size, dim) in enumerate(zip(sizes, axis_dims(head_dim), strict=True)):
        exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        frequencies = (1.0 / THETA**exponents).float().to(device)
        along = torch.arange(size, dtype=torch.float32, device=device)[:, None] * frequencies
        shape = [1, 1, 1, -1]
        shape[axis] = size
        angles.append(along.view(shape).expand(*sizes, -1))
    joined = torch.cat(angles, dim=-1)[..., None, :]
    return joined.cos(), joined.sin()


def _frame_chunks(x: torch.Tensor) -> Iterator[slice]:
    """Yield the frames of a video that are computed at once."""
    step = max(1, CHUNK_CELLS // max(1, x.shape[2] * x.shape[3]))
    return (slice(first, first + step) for first in range(0, x.shape[1], step))


class NeighborhoodAttention(nn.Module):
    def __init__(self, channels: int, window: Stride, head_dim: int) -> None:
        super().__init__()
        self.window, self.head_dim = window, head_dim
        self.qkv, self.proj = Linear(channels, 3 * channels), Linear(channels, channels)
        self.q_norm, self.k_norm = RmsNorm(head_dim), RmsNorm(head_dim)
        self.rotary_heads = RotaryHeads(RotaryLayout.PAIRS, token_dim=1, is_float32=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, self.head_dim)).unbind(4)  # [B, F, h, w, heads, head_dim]
        turns = turns_of(x.shape[1:4], self.head_dim, x.device)
        q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], turns)
        out: torch.Tensor = self.proj(neighborhood_attention(q, k, v, self.window).flatten(4))
        return out


class GatedLayers(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = (4 * channels + 15) // 16 * 16
        self.w_up, self.w_gate = (Linear(channels, inner, bias=False) for _ in range(2))
        self.w_down = Linear(inner, channels, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.w_down(self.activation(self.w_gate(x), self.w_up(x)))
        return out


class NeighborhoodBlock(nn.Module):
    """Attention to neighbors and a feed-forward layer, each behind a norm and beside its input."""

    def __init__(self, channels: int, window: Stride, head_dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(channels), RmsNorm(channels)
        self.attn, self.mlp = NeighborhoodAttention(channels, window, head_dim), GatedLayers(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.changed(x, self.norm1, self.norm2)

    def changed(self, x: torch.Tensor, before: Step, between: Step) -> torch.Tensor:
        """Return the video with what both layers add, behind these norms."""
        x = x + self.attn(before(x))
        return torch.cat([x[:, frames] + self.mlp(between(x[:, frames])) for frames in _frame_chunks(x)], dim=1)


class GuidedBlock(NeighborhoodBlock):
    """A block that the context [B, F, h, w, C] is added to first, and whose norms the time scales and shifts."""

    def __init__(self, channels: int, window: Stride, head_dim: int) -> None:
        super().__init__(channels, window, head_dim)
        self.context_proj = Linear(channels, channels)
        self.scale_shift_table = nn.Parameter(torch.empty(NUM_MODULATIONS, channels))

    def guided(self, x: torch.Tensor, context: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the video [B, F, h, w, C]. `time` is [B, 7, C]."""
        moved = (time + self.scale_shift_table.to(time))[:, :, None, None, None]  # [B, 7, 1, 1, 1, C]
        scale, shift, _, inner_scale, inner_shift, _, _ = moved.unbind(1)
        return self.changed(
            x + self.context_proj(context),
            lambda given: self.norm1(given) * (1.0 + scale) + shift,
            lambda given: self.norm2(given) * (1.0 + inner_scale) + inner_shift,
        )


class Enlargement(nn.Module):
    """Cells that become `stride` cells each; the first frame stays one."""

    def __init__(self, stage: EnlargingStage) -> None:
        super().__init__()
        self.stride = stage.stride
        self.proj = Linear(stage.channels, cells_of(stage.stride) * stage.leaving)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames, rows, columns = self.stride
        projected: torch.Tensor = self.proj(x)
        parts = projected.reshape(*x.shape[:-1], -1, frames, rows, columns)  # [B, F, h, w, C, p1, p2, p3]
        out = parts.permute(0, 1, 5, 2, 6, 3, 7, 4).flatten(5, 6).flatten(3, 4).flatten(1, 2)
        return out[:, 1:] if frames == 2 else out


class TimeEmbedder(nn.Module):
    def __init__(self, time_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(TIME_DIM, time_dim), nn.SiLU(), Linear(time_dim, time_dim))

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out: torch.Tensor = self.mlp(timestep_embedding(times, TIME_DIM).to(dtype))
        return out


class SharedModulation(nn.Module):
    def __init__(self, time_dim: int, channels: int) -> None:
        super().__init__()
        self.proj = Linear(time_dim, NUM_MODULATIONS * channels)

    def forward(self, time: torch.Tensor) -> torch.Tensor:
        """Return the modulation [B, 7, C] of all blocks by a time [B, D]."""
        out: torch.Tensor = self.proj(functional.silu(time)).unflatten(-1, (NUM_MODULATIONS, -1))
        return out


class DiffusionDecoder(nn.Module):
    """Latents [B, C, f, h, w] as the VAE has them -> pixels [B, 3, F, H, W]."""

    def __init__(self, config: DiffusionDecoderConfig) -> None:
        super().__init__()
        self.config = config
        pixels = 3 * config.patch**2
        self.conv_in = Linear(config.latent_channels, config.stages[0].channels)
        self.det_stages = nn.ModuleList(
            nn.ModuleList(
                NeighborhoodBlock(stage.channels, stage.window, config.head_dim) for _ in range(stage.num_blocks)
            )
            for stage in config.stages
        )
        self.upsamples = nn.ModuleList(Enlargement(stage) for stage in config.stages)
        self.t_embedder = TimeEmbedder(config.time_dim)
        self.conv_in_x_t = Linear(pixels, config.channels)
        self.shared_adaln = SharedModulation(config.time_dim, config.channels)
        self.diff_blocks = nn.ModuleList(
            GuidedBlock(config.channels, config.window, config.head_dim) for _ in range(config.num_blocks)
        )
        self.norm_out = RmsNorm(config.channels)
        self.conv_out = Linear(config.channels, pixels)

    def context(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the context of the pixels [B, F, H / 4, W / 4, C]."""
        extra = self.config.repeated_frames
        repeated = torch.cat([latents, latents[:, :, -1:].expand(-1, -1, extra, -1, -1)], dim=2)
        x: torch.Tensor = self.conv_in(repeated.permute(0, 2, 3, 4, 1))
        for blocks, enlarge in zip(self.det_stages, self.upsamples, strict=True):
            for block in blocks:  # type: ignore[attr-defined]  # a list of modules
                x = block(x)
            x = enlarge(x)
        return x[:, : x.shape[1] - extra * self.config.frames_ratio]

    def predicted(self, noisy: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Return the prediction [B, 3, F, H, W] for noisy pixels of a time [B] of 0..1."""
        patch = (1, self.config.patch, self.config.patch)
        x = self.conv_in_x_t(patched(noisy, patch).permute(0, 2, 3, 4, 1))
        shared = self.shared_adaln(self.t_embedder(self.config.time_scale * time, x.dtype))
        block: Any
        for block in self.diff_blocks:
            x = block.guided(x, context, shared)
        return unpatched(self.conv_out(self.norm_out(x)).permute(0, 4, 1, 2, 3), patch)

    def forward(self, latents: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Return the pixels [B, 3, F, H, W]. `noise` has their shape."""
        context, x = self.context(latents), noise
        num = self.config.num_steps
        times = torch.linspace(1.0, 1.0 / num, num, device=x.device)
        for index, time in enumerate(times):
            after = times[index + 1] if index + 1 < num else torch.zeros_like(time)
            found = self.predicted(x, time.expand(x.shape[0]), context)
            if self.config.prediction == "x0":
                if index + 1 == num:
                    return found
                velocity = (x.float() - found.float()) / time
            else:
                velocity = found.float()
            x = (x.float() - (time - after) * velocity).to(x.dtype)
        return x
