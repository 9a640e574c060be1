"""Layers of Kandinsky 5's transformer: embeddings, attention, and the blocks of text and of the latent.

`B` batch, `T` tokens, `S` tokens of text, `D` hidden size, `V` size of the time's embedding. Module names are those of
the published checkpoints.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.kandinsky5.config import PATCH_CELLS, Kandinsky5Config
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, ResidualNorm, RotaryHeads
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

NORM_EPS = 1e-5
NUM_PIECES, LONG_TOKENS = 4, 8192  # feed-forward layers of more tokens are computed in pieces: they are the peak


class TimeEmbeddings(nn.Module):
    """`forward(timesteps [B], dtype)` -> [B, V]."""

    def __init__(self, hidden_size: int, time_dim: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.in_layer = Linear(hidden_size, time_dim)
        self.out_layer = Linear(time_dim, time_dim)

    def forward(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        inner = functional.silu(self.in_layer(timestep_embedding(timesteps, self.hidden_size).to(dtype)))
        out: torch.Tensor = self.out_layer(inner)
        return out


class TextEmbeddings(nn.Module):
    """A projection and a norm of a text's tokens, or of its pooled output: `forward([..., in])` -> [..., out]."""

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.in_layer = Linear(in_size, out_size)
        self.norm = nn.LayerNorm(out_size, eps=NORM_EPS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.in_layer(text))
        return out


class VisualEmbeddings(nn.Module):
    """`forward(patches [B, T, 4 * C])` -> tokens [B, T, D]."""

    def __init__(self, config: Kandinsky5Config) -> None:
        super().__init__()
        self.in_layer = Linear(PATCH_CELLS * config.in_channels, config.hidden_size)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.in_layer(patches)
        return out


class Modulation(nn.Module):
    """Scales, shifts and gates from the embedded time: `forward([B, V])` -> `num_parts` tensors [B, 1, D]."""

    def __init__(self, config: Kandinsky5Config, num_parts: int) -> None:
        super().__init__()
        self.num_parts = num_parts
        self.out_layer = Linear(config.time_dim, num_parts * config.hidden_size)

    def forward(self, time: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts: torch.Tensor = self.out_layer(functional.silu(time))[:, None]
        return parts.chunk(self.num_parts, dim=-1)


class Attention(nn.Module):
    """Attention from tokens to a context, with norms of the heads of queries and keys, which rotations may turn."""

    def __init__(self, config: Kandinsky5Config) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.to_query, self.to_key, self.to_value, self.out_layer = (
            Linear(config.hidden_size, config.hidden_size) for _ in range(4)
        )
        self.query_norm, self.key_norm = (RmsNorm(config.head_dim, eps=None) for _ in range(2))
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, rotations: torch.Tensor | None, options: Options
    ) -> torch.Tensor:
        """Attend from [B, T, D] to [B, S, D] -> [B, T, D]. `rotations` [1, T, 1, P, 2, 2] turn both, None neither."""
        q, k, v = self._heads(self.to_query(x)), self._heads(self.to_key(context)), self._heads(self.to_value(context))
        q, k = self.rotary_heads([(q, self.query_norm)], [(k, self.key_norm)], rotations)
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        out: torch.Tensor = self.out_layer(
            optimized_attention(q, k, v, self.num_heads, skip_reshape=True, transformer_options=options)
        )
        return out

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.num_heads, self.head_dim)


class FeedForward(nn.Module):
    """Two layers without biases; those of long videos are computed a piece of the tokens at a time."""

    def __init__(self, config: Kandinsky5Config) -> None:
        super().__init__()
        self.in_layer = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.out_layer = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = Gelu("none")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = x.chunk(NUM_PIECES, dim=1) if x.shape[1] > LONG_TOKENS else (x,)
        computed = [self.out_layer(self.activation(self.in_layer(piece))) for piece in pieces]
        return computed[0] if len(computed) == 1 else torch.cat(computed, dim=1)


class TextBlock(nn.Module):
    """A block of the text's tokens: self-attention and a feed-forward layer, modulated by the time."""

    def __init__(self, config: Kandinsky5Config) -> None:
        super().__init__()
        self.text_modulation = Modulation(config, 6)
        self.self_attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=NORM_EPS, is_joined=True), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(self, x: torch.Tensor, time: torch.Tensor, rotations: torch.Tensor, options: Options) -> torch.Tensor:
        """Return the tokens [B, S, D] after the block, for the embedded time [B, V]."""
        shift, scale, gate, inner_shift, inner_scale, inner_gate = self.text_modulation(time)
        normed = self.adaptive_norm(x, scale, shift)
        attended = self.self_attention(normed, normed, rotations, options)
        x, normed = self.residual_norm(x, attended, gate, inner_scale, inner_shift)
        out: torch.Tensor = self.residual(x, self.feed_forward(normed), inner_gate)
        return out


class VisualBlock(nn.Module):
    """A block of the latent's tokens: self-attention, attention to the text, and a feed-forward layer."""

    def __init__(self, config: Kandinsky5Config) -> None:
        super().__init__()
        self.visual_modulation = Modulation(config, 9)
        self.self_attention = Attention(config)
        self.cross_attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=NORM_EPS, is_joined=True), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, time: torch.Tensor, rotations: torch.Tensor, options: Options
    ) -> torch.Tensor:
        """Return the tokens [B, T, D] after the block, for text [B, S, D] and the embedded time [B, V]."""
        shift, scale, gate, *more = self.visual_modulation(time)
        text_shift, text_scale, text_gate, inner_shift, inner_scale, inner_gate = more
        normed = self.adaptive_norm(x, scale, shift)
        attended = self.self_attention(normed, normed, rotations, options)
        x, normed = self.residual_norm(x, attended, gate, text_scale, text_shift)
        of_text = self.cross_attention(normed, context, None, options)
        x, normed = self.residual_norm(x, of_text, text_gate, inner_scale, inner_shift)
        out: torch.Tensor = self.residual(x, self.feed_forward(normed), inner_gate)
        return out


class OutLayer(nn.Module):
    """The last layer: `forward(x [B, T, D], time [B, V])` -> patches [B, T, 4 * C], channels outermost."""

    def __init__(self, config: Kandinsky5Config) -> None:
        super().__init__()
        self.modulation = Modulation(config, 2)
        self.out_layer = Linear(config.hidden_size, PATCH_CELLS * config.out_channels)
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS, is_joined=True)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        shift, scale = self.modulation(time)
        out: torch.Tensor = self.out_layer(self.adaptive_norm(x, scale, shift))
        return out
