"""Configuration and layers of Lumina-Image 2.0's transformer and Z-Image's (`transformer.py`).

Norms stand on both sides of attention and feed-forward layers, and the time scales and gates what lies between them.
`B` batch, `T` tokens, `D` width. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.feed_forward import GatedFeedForward
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    Modulator,
    ResidualNorm,
    RotaryHeads,
    Stretches,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

SINUSOID_WIDTH = 256  # of the time
LAST_NORM_EPS = 1e-6
MARK = "noise_refiner.0.attention.k_norm.weight"
TIME_LAYER = "layers.0.adaLN_modulation.0.weight"  # the first of a block's modulation where no SiLU comes before it
PAD_TOKEN = "cap_pad_token"
POOLED = "clip_text_pooled_proj.0.weight"  # of networks that read a pooled output beside the time
FLOAT32_EPS = 2.0**-23


@dataclass(frozen=True, slots=True)
class Lumina2Config:
    """Configuration of the network.

    `axes` are the channels of a head that rotate by each axis, with angles from `theta`. The time, times `time_factor`,
    is embedded by a layer of `time_inner` into `time_width`; with `activates_time` blocks pass it through SiLU. With
    `pads_tokens` text and image are filled up to multiples of 32 tokens. `has_last_norm`: the file has the factors of
    a norm that nothing uses. `query_eps` None is the least difference from 1 of the computed type. A patch has
    `patch` cells a side.
    """

    width: int
    heads: int
    key_heads: int
    inner_width: int
    num_layers: int
    context_dim: int
    time_width: int
    time_inner: int
    num_refiners: int = 2
    in_channels: int = 16
    axes: tuple[int, int, int] = (32, 32, 32)
    theta: float = 10000.0
    time_factor: float = 1.0
    activates_time: bool = True
    pads_tokens: bool = False
    has_last_norm: bool = False
    query_eps: float | None = None
    patch: int = PATCH

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def lumina2_config(shapes: Shapes) -> Lumina2Config:
    """Return the configuration of the network with these tensors (names without prefix).

    One whose blocks do not pass the time through SiLU is Z-Image's, with its axes of places and unit of time.
    """
    width, in_width = shapes["x_embedder.weight"]
    rows = shapes["layers.0.attention.qkv.weight"][0]
    (head_width,) = shapes[MARK]
    heads = shapes["layers.0.attention.out.weight"][1] // head_width
    time_width, time_inner = shapes["t_embedder.mlp.2.weight"]
    is_plain = TIME_LAYER in shapes
    return Lumina2Config(
        width=width,
        heads=heads,
        key_heads=(rows // head_width - heads) // 2,
        inner_width=shapes["layers.0.feed_forward.w1.weight"][0],
        num_layers=count_children(shapes, "layers"),
        context_dim=shapes["cap_embedder.1.weight"][1],
        time_width=time_width,
        time_inner=time_inner,
        num_refiners=count_children(shapes, "noise_refiner"),
        in_channels=in_width // PATCH**2,
        axes=(32, 48, 48) if is_plain else (32, 32, 32),
        theta=256.0 if is_plain else 10000.0,
        time_factor=1000.0 if is_plain else 1.0,
        activates_time=not is_plain,
        pads_tokens=PAD_TOKEN in shapes,
        has_last_norm="norm_final.weight" in shapes,
        query_eps=FLOAT32_EPS if is_plain else None,
    )


class JointAttention(nn.Module):
    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        width = config.head_width
        self.heads, self.key_heads, self.head_width = config.heads, config.key_heads, width
        self.qkv = Linear(config.width, (config.heads + 2 * config.key_heads) * width, bias=False)
        self.out = Linear(config.heads * width, config.width, bias=False)
        self.q_norm, self.k_norm = (RmsNorm(width, config.query_eps) for _ in range(2))
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, pe: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return [B, T, D]. `mask` [B, 1, 1, T] is added to the scores, `pe` rotates (`rotations`)."""
        heads = self.qkv(x).view(*x.shape[:2], -1, self.head_width)
        q, k, v = torch.split(heads, [self.heads, self.key_heads, self.key_heads], dim=2)
        q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], pe.transpose(1, 2))
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))  # [B, heads, T, W]
        shared = self.heads // self.key_heads
        if shared > 1:
            k, v = (item.repeat_interleave(shared, dim=1) for item in (k, v))
        attended = optimized_attention(q, k, v, self.heads, mask=mask, skip_reshape=True, transformer_options=options)
        out: torch.Tensor = self.out(attended)
        return out


class JointBlock(nn.Module):
    """A block with norms on both sides of attention and feed-forward layers, modulated by the time or by nothing."""

    def __init__(self, config: Lumina2Config, *, is_modulated: bool = True) -> None:
        super().__init__()
        self.attention = JointAttention(config)
        self.feed_forward = GatedFeedForward(config.width, config.inner_width, clamps_product=True)
        self.attention_norm1, self.attention_norm2, self.ffn_norm1, self.ffn_norm2 = (
            RmsNorm(config.width, 1e-5) for _ in range(4)
        )
        self.adaptive_norm, self.residual = (
            AdaptiveNorm("none"),
            GatedResidual(has_tanh=True, clamps_change=is_modulated),
        )
        self.residual_norm = ResidualNorm(GatedResidual(has_tanh=True, clamps_change=True), self.adaptive_norm)
        if is_modulated:
            layer = Linear(config.time_width, 4 * config.width)
            self.adaLN_modulation = nn.Sequential(nn.SiLU(), layer) if config.activates_time else nn.Sequential(layer)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        pe: torch.Tensor,
        time: Modulator | None = None,
        options: Options | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. A modulated block needs `time` [B, time width], or one for each stretch of tokens."""
        scale = gate = inner_scale = inner_gate = None
        if time is not None:
            scale, gate, inner_scale, inner_gate = self._modulators(time)
        attended = self.attention(self.adaptive_norm(x, scale, norm=self.attention_norm1), mask, pe, options)
        x, normed = self.residual_norm(
            x, attended, gate, inner_scale, change_norm=self.attention_norm2, norm=self.ffn_norm1
        )
        out: torch.Tensor = self.residual(x, self.feed_forward(normed), inner_gate, self.ffn_norm2)
        return out

    def _modulators(self, time: Modulator) -> Sequence[Modulator]:
        """Return scale and gate of attention, then of the feed-forward layers."""
        if isinstance(time, Stretches):
            parts = (self.adaLN_modulation(part).unsqueeze(1).chunk(4, dim=2) for part in time.parts)
            return [Stretches(time.lengths, values) for values in zip(*parts, strict=True)]
        made: torch.Tensor = self.adaLN_modulation(time)
        return made.unsqueeze(1).chunk(4, dim=2)


class TimeEmbedder(nn.Module):
    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            Linear(SINUSOID_WIDTH, config.time_inner), nn.SiLU(), Linear(config.time_inner, config.time_width)
        )

    def forward(self, time: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out: torch.Tensor = self.mlp(timestep_embedding(time, SINUSOID_WIDTH).to(dtype))
        return out


class FinalLayer(nn.Module):
    def __init__(self, config: Lumina2Config) -> None:
        super().__init__()
        self.linear = Linear(config.width, config.patch**2 * config.in_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.time_width, config.width))
        self.adaptive_norm = AdaptiveNorm(eps=LAST_NORM_EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.adaptive_norm(x, self.adaLN_modulation(time).unsqueeze(1)))
        return out
