"""The configuration of OmniGen2's transformer, and the layers that it is made of.

`B` batch, `T` tokens, `D` width. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.lumina2.layers import SINUSOID_WIDTH
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.sinusoids import sinusoids_scaled_last
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.layers.unet_layers import Options

NORM_EPS = 1e-5
LAST_NORM_EPS = 1e-6
TIME_FACTOR = 1000.0
MARK = "time_caption_embed.timestep_embedder.linear_1.bias"
ATTENTION = "layers.0.attn."


@dataclass(frozen=True, slots=True)
class OmniGen2Config:
    """Configuration of the network; `num_references` is the most images beside the one that is drawn."""

    width: int
    heads: int
    key_heads: int
    inner_width: int
    num_layers: int
    context_dim: int
    time_width: int
    num_refiners: int = 2
    in_channels: int = 16
    num_references: int = 5

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def axes(self) -> tuple[int, int, int]:
        """Channels of a head that rotate by each axis."""
        third = self.head_width // 3
        return third, third, third


def omnigen2_config(shapes: Shapes) -> OmniGen2Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, in_width = shapes["x_embedder.weight"]
    (head_width,) = shapes[f"{ATTENTION}norm_q.weight"]
    return OmniGen2Config(
        width=width,
        heads=shapes[f"{ATTENTION}to_q.weight"][0] // head_width,
        key_heads=shapes[f"{ATTENTION}to_k.weight"][0] // head_width,
        inner_width=shapes["layers.0.feed_forward.linear_1.weight"][0],
        num_layers=count_children(shapes, "layers"),
        context_dim=shapes["time_caption_embed.caption_embedder.1.weight"][1],
        time_width=shapes[MARK][0],
        num_refiners=count_children(shapes, "noise_refiner"),
        in_channels=in_width // PATCH**2,
        num_references=shapes["image_index_embedding"][0],
    )


class SharedKeyAttention(nn.Module):
    """Attention whose keys and values serve several heads of queries."""

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        width = config.head_width
        self.heads, self.key_heads, self.head_width = config.heads, config.key_heads, width
        self.to_q = Linear(config.width, config.heads * width, bias=False)
        self.to_k, self.to_v = (Linear(config.width, config.key_heads * width, bias=False) for _ in range(2))
        self.norm_q, self.norm_k = (RmsNorm(width, NORM_EPS) for _ in range(2))
        self.to_out = nn.ModuleList([Linear(config.heads * width, config.width, bias=False)])
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, x: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        """Return [B, T, D]. `pe` rotates queries and keys (`rotations`)."""
        q, k, v = (layer(x).view(*x.shape[:2], -1, self.head_width) for layer in (self.to_q, self.to_k, self.to_v))
        q, k = self.rotary_heads([(q, self.norm_q)], [(k, self.norm_k)], pe.transpose(1, 2))
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))  # [B, heads, T, W]
        k, v = (item.repeat_interleave(self.heads // self.key_heads, dim=1) for item in (k, v))
        attended = optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        out: torch.Tensor = self.to_out[0](attended)
        return out


class GatedLayers(nn.Module):
    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        self.linear_1, self.linear_3 = (Linear(config.width, config.inner_width, bias=False) for _ in range(2))
        self.linear_2 = Linear(config.inner_width, config.width, bias=False)
        self.activation = GatedActivation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_2(self.activation(self.linear_1(x), self.linear_3(x)))
        return out


class ModulatingNorm(nn.Module):
    """The first norm of a block, with the layer that makes scales and gates [B, D] of the whole block from the time."""

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        self.linear = Linear(config.time_width, 4 * config.width)
        self.norm = RmsNorm(config.width, NORM_EPS)
        self.adaptive_norm = AdaptiveNorm("none")

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the scaled norm [B, T, D], then gate, scale and gate [B, 1, D]."""
        scale, gate, inner_scale, inner_gate = self.linear(functional.silu(time)).unsqueeze(1).chunk(4, dim=2)
        return self.adaptive_norm(x, scale, norm=self.norm), gate, inner_scale, inner_gate


class RefinerBlock(nn.Module):
    """A block with norms on both sides of attention and feed-forward layers."""

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        self.attn = SharedKeyAttention(config)
        self.feed_forward = GatedLayers(config)
        self.norm1: nn.Module = RmsNorm(config.width, NORM_EPS)
        self.ffn_norm1, self.norm2, self.ffn_norm2 = (RmsNorm(config.width, NORM_EPS) for _ in range(3))
        self.residual = GatedResidual(has_tanh=True)
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm("none"))

    def forward(self, x: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        return self._behind(x, self.attn(self.norm1(x), pe, options), None, None, None)

    def _behind(
        self,
        x: torch.Tensor,
        attended: torch.Tensor,
        gate: torch.Tensor | None,
        inner_scale: torch.Tensor | None,
        inner_gate: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return tokens [B, T, D] with what they attended to, and behind the feed-forward layers."""
        x, normed = self.residual_norm(x, attended, gate, inner_scale, change_norm=self.norm2, norm=self.ffn_norm1)
        out: torch.Tensor = self.residual(x, self.feed_forward(normed), inner_gate, self.ffn_norm2)
        return out


class TimedBlock(RefinerBlock):
    """The same block, scaled and gated by the time [B, time width]."""

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__(config)
        self.norm1 = ModulatingNorm(config)

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, pe: torch.Tensor, time: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        normed, gate, inner_scale, inner_gate = self.norm1(x, time)
        return self._behind(x, self.attn(normed, pe, options), gate, inner_scale, inner_gate)


class TimeLayers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(SINUSOID_WIDTH, width), Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_2(functional.silu(self.linear_1(x)))
        return out


class TimeTextEmbedder(nn.Module):
    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        self.timestep_embedder = TimeLayers(config.time_width)
        self.caption_embedder = nn.Sequential(
            RmsNorm(config.context_dim, NORM_EPS), Linear(config.context_dim, config.width)
        )

    def forward(self, time: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the time [B, time width] of numbers from 0 to 1, and the text [B, T, D]."""
        return self.timestep_embedder(
            sinusoids_scaled_last(time, SINUSOID_WIDTH, TIME_FACTOR).to(text.dtype)
        ), self.caption_embedder(text)


class LastLayer(nn.Module):
    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        self.linear_1 = Linear(config.time_width, config.width)
        self.linear_2 = Linear(config.width, PATCH * PATCH * config.in_channels)
        self.adaptive_norm = AdaptiveNorm(eps=LAST_NORM_EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale = self.linear_1(functional.silu(time)).unsqueeze(1)
        out: torch.Tensor = self.linear_2(self.adaptive_norm(x, scale))
        return out
