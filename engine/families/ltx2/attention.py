"""Attention and feed-forward layers of LTX-2's transformer and of its connectors. Names are those of the files.

`B` batch, `T` tokens, `S` tokens that are attended to, `D` hidden size, `H` heads, `K` tokens of guides.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.transformer_layers import Gelu, RotaryHeads, RotaryLayout, Tables
from darkroom.engine.layers.unet_layers import Options

NORM_EPS = 1e-5


class Attention(nn.Module):
    """Attention among tokens, or over those of another stream; queries and keys are normalised over all heads.

    `forward(x [B, T, query_dim], context [B, S, context_dim])` -> `[B, T, query_dim]`. With `is_gated` each head is
    multiplied by twice a sigmoid of the token.
    """

    def __init__(
        self,
        query_dim: int,
        context_dim: int,
        heads: int,
        head_dim: int,
        *,
        is_gated: bool = False,
        splits_rotation: bool = True,
    ) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.q_norm, self.k_norm = (RmsNorm(inner, eps=NORM_EPS) for _ in range(2))
        self.to_q = Linear(query_dim, inner)
        self.to_k, self.to_v = (Linear(context_dim, inner) for _ in range(2))
        self.to_gate_logits = Linear(query_dim, heads) if is_gated else None
        self.to_out = nn.ModuleList([Linear(inner, query_dim)])
        layout = RotaryLayout.HALVES if splits_rotation else RotaryLayout.PAIRS
        self.rotary_heads = RotaryHeads(layout, token_dim=1, num_heads=heads)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        tables: Tables | None = None,
        key_tables: Tables | None = None,
        *,
        mask: torch.Tensor | None = None,
        guides: torch.Tensor | None = None,
        options: Options | None = None,
        passes_values: bool = False,
    ) -> torch.Tensor:
        """Attend. `tables` rotate queries and keys, `key_tables` keys in their place; `mask` is added to the scores.

        `guides` [B or 1, K] is added to the scores between the last K tokens and those before them. With
        `passes_values` the result is that of each token's own value, as if it attended to itself alone.
        """
        v = self.to_v(context)
        if passes_values:
            return self._out(x, v)
        q, k = self.rotary_heads([(self.to_q(x), self.q_norm)], [(self.to_k(context), self.k_norm)], tables, key_tables)
        q, k = q.flatten(2), k.flatten(2)
        if guides is None:
            attended = optimized_attention(q, k, v, self.heads, mask=mask, transformer_options=options)
        else:
            attended = self._with_guides(q, k, v, guides, options)
        return self._out(x, attended)

    def _out(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        if self.to_gate_logits is not None:
            gates = 2.0 * torch.sigmoid(self.to_gate_logits(x))  # [B, T, H]
            attended = (attended.view(*attended.shape[:2], self.heads, -1) * gates[..., None]).flatten(2)
        out: torch.Tensor = self.to_out[0](attended)
        return out

    def _with_guides(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, guides: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Attend in two parts, so that no mask [T, T] is made: tokens of the video, then those of guides."""
        first = q.shape[1] - guides.shape[1]
        to_guides = functional.pad(guides, (first, 0))[:, None, None]  # [B, 1, 1, T]
        rows = guides[:, None, :, None].expand(-1, -1, -1, first)
        to_video = functional.pad(rows, (0, guides.shape[1]))  # [B, 1, K, T]
        parts = ((q[:, :first], to_guides), (q[:, first:], to_video))
        attended = [
            optimized_attention(part, k, v, self.heads, mask=mask, transformer_options=options) for part, mask in parts
        ]
        return torch.cat(attended, dim=1)


class FeedForward(nn.Module):
    """Two layers with GELU between: `forward(x [B, T, D])` -> `[B, T, D]`."""

    def __init__(self, hidden_size: int, *, has_bias: bool = True) -> None:
        super().__init__()
        inner = 4 * hidden_size
        self.net = nn.ModuleDict(
            {
                "0": nn.ModuleDict({"proj": Linear(hidden_size, inner, bias=has_bias)}),
                "2": Linear(inner, hidden_size, bias=has_bias),
            }
        )
        self.activation = Gelu("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: nn.Module = self.net["0"]["proj"]  # type: ignore[index]
        out: torch.Tensor = self.net["2"](self.activation(first(x)))
        return out
