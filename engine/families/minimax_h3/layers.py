"""Layers of MiniMax H3's transformer: attention in one stream, modulation by noise level and modality.

`B` batch, `S` tokens, `D` hidden size, `H` heads, `W` channels of a head, `M` noise levels. Module names are those of
the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Modulator,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
    Stretches,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

NUM_MODALITIES = 3  # video, text, audio
Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [B, S, 1, pairs] each


@dataclass(frozen=True, slots=True)
class MiniMaxH3Config:
    """Configuration of the network, with the names of the published `config.json` where it has them.

    `curve_points` is the number of noise levels in the table of a network whose modulations read a few coordinates of
    the time instead of its embedding, 0 for others. `gate_compress`: blocks have the gate of attention among tiles, for
    Video Sparse Attention. `sigma_shift_video` and `sigma_shift_audio` are the shifts of the
    noise levels of the two streams.
    """

    hidden_size: int = 5376
    num_layers: int = 50
    num_refiner_layers: int = 2
    num_heads: int = 56
    head_dim: int = 128
    intermediate_size: int = 14336
    in_channels: int = 24
    audio_channels: int = 32
    text_dim: int = 5120
    time_input_dim: int = 256
    time_hidden_size: int = 5376
    time_embed_dim: int = 2688
    num_frequencies: int = 16
    curve_points: int = 0
    gate_compress: bool = False
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    final_norm_eps: float = 1e-5
    sigma_shift_video: float = 12.0
    sigma_shift_audio: float = 3.0


class TimeEmbedder(nn.Module):
    """`forward(times [M] of 0..1)` -> [M, time_embed_dim], float32."""

    def __init__(self, config: MiniMaxH3Config) -> None:
        super().__init__()
        self.input_dim = config.time_input_dim
        self.proj_in = Linear(config.time_input_dim, config.time_hidden_size)
        self.proj_out = Linear(config.time_hidden_size, config.time_embed_dim)

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.proj_out(functional.silu(self.proj_in(timestep_embedding(times, self.input_dim))))
        return embedded


class Attention(nn.Module):
    """Attention in one stream. `to_gate_compress` is read by `sparse_attention.py` alone; None where there is none."""

    def __init__(self, config: MiniMaxH3Config, *, has_gate: bool = False) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_heads, config.head_dim
        inner = self.heads * self.head_dim
        self.qkv_proj = Linear(config.hidden_size, inner * 3, bias=False)
        self.to_gate_compress = Linear(config.hidden_size, inner, bias=False) if has_gate else None
        self.q_norm, self.k_norm = (RmsNorm(config.head_dim, config.qk_norm_eps) for _ in range(2))
        self.out_proj = Linear(inner, config.hidden_size, bias=False)
        self.rotary_heads = RotaryHeads(RotaryLayout.HALVES, token_dim=1)

    def forward(self, x: torch.Tensor, rotation: Rotation | None, options: Options | None) -> torch.Tensor:
        """Return [B, S, D]. `rotation` is that of queries and keys, None for tokens without positions."""
        q, k, v = self.projected(x, rotation)
        attended = optimized_attention(q.flatten(2), k.flatten(2), v, self.heads, transformer_options=options)
        out: torch.Tensor = self.out_proj(attended)
        return out

    def projected(self, x: torch.Tensor, rotation: Rotation | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries and keys [B, S, H, W], normalised and rotated, and values [B, S, H * W]."""
        q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
        q, k = (item.reshape(*item.shape[:2], self.heads, self.head_dim) for item in (q, k))
        q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], rotation)
        return q, k, v


AttentionFunction = Callable[[Attention, torch.Tensor, Rotation, Options | None], torch.Tensor]
"""The layer, its input [B, S, D], rotation and options -> [B, S, D]."""


class Mlp(nn.Module):
    def __init__(self, config: MiniMaxH3Config) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size * 2, bias=False)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class RefinerBlock(nn.Module):
    """A block of the text's own, without modulation and positions."""

    def __init__(self, config: MiniMaxH3Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = (RmsNorm(config.hidden_size, config.norm_eps) for _ in range(2))
        self.attn, self.mlp = Attention(config), Mlp(config)
        self.residual = GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm("none"))

    def forward(self, x: torch.Tensor, options: Options | None) -> torch.Tensor:
        x, normed = self.residual_norm(x, self.attn(self.norm1(x), None, options), None, None, norm=self.norm2)
        out: torch.Tensor = self.residual(x, self.mlp(normed))
        return out


class TokenRefiner(nn.Module):
    def __init__(self, config: MiniMaxH3Config) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock(config) for _ in range(config.num_refiner_layers))
        self.final_norm = RmsNorm(config.hidden_size, config.final_norm_eps)

    def forward(self, x: torch.Tensor, options: Options | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, options)
        out: torch.Tensor = self.final_norm(x)
        return out


@dataclass(frozen=True, slots=True)
class Modulated:
    """Tokens of one modality: the noise level [of `M`] of all of them, or of each [n]."""

    level: int | torch.Tensor
    modality: int
    num_tokens: int


class AdalnProj(nn.Module):
    """`forward(times [B, M, time_embed_dim])` -> tables [B, M, modalities, expand, D].

    `reads_curve`: the time is given by its coordinates on a curve, which no activation follows.
    """

    def __init__(self, config: MiniMaxH3Config, expand: int, num_modalities: int) -> None:
        super().__init__()
        self.shape = (num_modalities, expand, config.hidden_size)
        self.reads_curve = bool(config.curve_points)
        self.linear = Linear(config.time_embed_dim, expand * config.hidden_size * num_modalities)

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        tables: torch.Tensor = self.linear(times if self.reads_curve else functional.silu(times))
        return tables.view(*tables.shape[:-1], *self.shape)


def modulators(tables: torch.Tensor, stretches: Sequence[Modulated]) -> list[Modulator]:
    """Return the modulators of tokens, in the order of `expand`, from tables [B, M, modalities, expand, D]."""
    parts = [_rows(tables[:, :, stretch.modality], stretch.level) for stretch in stretches]  # [B, 1 or n, expand, D]
    lengths = tuple(stretch.num_tokens for stretch in stretches)
    if len(parts) == 1:
        return list(parts[0].unbind(2))
    return [Stretches(lengths, tuple(part[:, :, i] for part in parts)) for i in range(tables.shape[3])]


def _rows(tables: torch.Tensor, level: int | torch.Tensor) -> torch.Tensor:
    """Return the rows of tables [B, M, ...] of one level, or of a level by token."""
    return tables[:, level : level + 1] if isinstance(level, int) else tables[:, level]


class DitBlock(nn.Module):
    def __init__(self, config: MiniMaxH3Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = (RmsNorm(config.hidden_size, config.norm_eps) for _ in range(2))
        self.attn, self.mlp = Attention(config, has_gate=config.gate_compress), Mlp(config)
        self.adaln_proj = AdalnProj(config, 6, NUM_MODALITIES)
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        x: torch.Tensor,
        times: torch.Tensor,
        stretches: Sequence[Modulated],
        rotation: Rotation,
        options: Options | None,
        attention: AttentionFunction | None = None,
    ) -> torch.Tensor:
        """Return [B, S, D]. `times` [B, M, time_embed_dim] are those of the noise levels that stretches name.

        `attention` is called with the layer of attention, in its place.
        """
        tables = self.adaln_proj(times).to(x.dtype)
        # Taken when they are needed: of tokens with levels of their own each is as large as the tokens.
        shift, scale = modulators(tables[:, :, :, :2], stretches)
        normed = self.adaptive_norm(x, scale, shift, self.norm1)
        if attention is None:
            attended = self.attn(normed, rotation, options)
        else:
            attended = attention(self.attn, normed, rotation, options)
        gate, shift, scale = modulators(tables[:, :, :, 2:5], stretches)
        x, normed = self.residual_norm(x, attended, gate, scale, shift, norm=self.norm2)
        (gate,) = modulators(tables[:, :, :, 5:], stretches)
        out: torch.Tensor = self.residual(x, self.mlp(normed), gate)
        return out


class FinalLayer(nn.Module):
    def __init__(self, config: MiniMaxH3Config, video_dim: int) -> None:
        super().__init__()
        self.norm = RmsNorm(config.hidden_size, config.final_norm_eps)
        self.adaln_proj = AdalnProj(config, 2, 1)
        self.video_out = Linear(config.hidden_size, video_dim)
        self.audio_out = Linear(config.hidden_size, config.audio_channels)
        self.adaptive_norm = AdaptiveNorm("none")

    def forward(
        self, video: torch.Tensor, audio: torch.Tensor, times: torch.Tensor, levels: Sequence[int | torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the video [B, n, video_dim] and of the audio [B, n, audio_channels], float32.

        `levels` are the noise levels of the video's tokens and of the audio's.
        """
        tables = self.adaln_proj(times)[:, :, 0]  # [B, M, 2, D]
        seen = []
        for tokens, level in zip((video, audio), levels, strict=True):
            shift, scale = _rows(tables, level).unbind(2)
            seen.append(self.adaptive_norm(tokens, scale, shift, self.norm).float())
        return self.video_out(seen[0]), self.audio_out(seen[1])
