"""Attention and feed-forward layers of ACE-Step 1.5, in all of its networks.

Attention has fewer keys than queries (Ainslie et al. 2023, arXiv 2305.13245), whose norms are Qwen3's (arXiv
2505.09388), and positions are rotations (Su et al. 2021, arXiv 2104.09864). `B` batch, `T` tokens, `D` hidden size, `H`
heads, `K` of them with their own keys, `W` channels of a head. Module names are those of the published files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import Turns
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.transformer_layers import GatedActivation, GatedResidual, RotaryHeads, RotaryLayout
from darkroom.engine.layers.unet_layers import Options

HEAD_DIM = 128
THETA = 1_000_000.0
NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Width:
    """Sizes of the tokens of a network and of its layers."""

    hidden_size: int
    intermediate_size: int
    heads: int
    key_heads: int


def width_of(shapes: Shapes, layer: str, attention: str = "self_attn") -> Width:
    """Return the sizes of a layer by the shapes of its weights. Raises LookupError for a missing one."""
    intermediate_size, hidden_size = shapes[f"{layer}.mlp.gate_proj.weight"]
    heads, key_heads = (shapes[f"{layer}.{attention}.{name}_proj.weight"][0] // HEAD_DIM for name in "qk")
    return Width(hidden_size, intermediate_size, heads, key_heads)


def turns_of(length: int, device: torch.device, dtype: torch.dtype) -> Turns:
    """Return cosines and sines [length, W / 2] of the angles of so many positions."""
    steps = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32, device=device) / HEAD_DIM)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), steps)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def window_mask(length: int, window: int, like: torch.Tensor) -> torch.Tensor:
    """Return the addition to scores [1, 1, T, T] by which tokens attend to those at most `window` tokens away."""
    positions = torch.arange(length, device=like.device)
    is_far = (positions[:, None] - positions[None]).abs() > window
    return torch.zeros_like(is_far, dtype=like.dtype).masked_fill(is_far, torch.finfo(like.dtype).min)[None, None]


class Attention(nn.Module):
    """Attention over the tokens themselves, rotated by position, or over others, which are not."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        self.heads, self.key_heads = width.heads, width.key_heads
        self.q_proj = Linear(width.hidden_size, width.heads * HEAD_DIM, bias=False)
        self.k_proj, self.v_proj = (Linear(width.hidden_size, width.key_heads * HEAD_DIM, bias=False) for _ in range(2))
        self.o_proj = Linear(width.heads * HEAD_DIM, width.hidden_size, bias=False)
        self.q_norm, self.k_norm = RmsNorm(HEAD_DIM, NORM_EPS), RmsNorm(HEAD_DIM, NORM_EPS)
        self.rotary_heads = RotaryHeads(RotaryLayout.HALVES)

    def forward(
        self,
        x: torch.Tensor,
        turns: Turns | None,
        others: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        options: Options | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. `mask` is added to the scores."""
        read = x if others is None else others
        q, k = self.rotary_heads(
            [(self._split(self.q_proj(x), self.heads), self.q_norm)],
            [(self._split(self.k_proj(read), self.key_heads), self.k_norm)],
            turns,
        )
        v = self._split(self.v_proj(read), self.key_heads)
        k, v = (item.repeat_interleave(self.heads // self.key_heads, dim=1) for item in (k, v))
        out: torch.Tensor = self.o_proj(
            optimized_attention(q, k, v, self.heads, mask=mask, skip_reshape=True, transformer_options=options or {})
        )
        return out

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(*x.shape[:2], heads, HEAD_DIM).transpose(1, 2)  # [B, H or K, T, W]


class FeedForward(nn.Module):
    def __init__(self, width: Width) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (
            Linear(width.hidden_size, width.intermediate_size, bias=False) for _ in range(2)
        )
        self.down_proj = Linear(width.intermediate_size, width.hidden_size, bias=False)
        self.gated_activation = GatedActivation("silu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.gated_activation(self.gate_proj(x), self.up_proj(x)))
        return out


class EncoderLayer(nn.Module):
    """A layer of the encoders: attention of all tokens to all, then a feed-forward layer."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(width), FeedForward(width)
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(width.hidden_size, NORM_EPS) for _ in range(2))
        self.residual = GatedResidual()

    def forward(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        x = self.residual(x, self.self_attn(self.input_layernorm(x), turns))
        out: torch.Tensor = self.residual(x, self.mlp(self.post_attention_layernorm(x)))
        return out


class EncoderStack(nn.Module):
    """Layers over projected tokens, with a norm at the end."""

    def __init__(self, in_size: int, width: Width, num_layers: int, eps: float | None = NORM_EPS) -> None:
        super().__init__()
        self.embed_tokens = Linear(in_size, width.hidden_size)
        self.layers = nn.ModuleList(EncoderLayer(width) for _ in range(num_layers))
        self.norm = RmsNorm(width.hidden_size, eps)

    def encoded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return projected tokens [B, T, D] behind all layers and the norm."""
        turns = turns_of(tokens.shape[1], tokens.device, tokens.dtype)
        for layer in self.layers:
            tokens = layer(tokens, turns)
        out: torch.Tensor = self.norm(tokens)
        return out
