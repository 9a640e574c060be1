"""Attention of LTX-2's transformer and of its connectors. Names are those of the files.

`B` batch, `T` tokens, `S` tokens that are attended to, `D` hidden size, `H` heads, `K` tokens of guides.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.families.ltx_video.transformer import attended_with_guides
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.transformer_layers import RotaryHeads, RotaryLayout, Tables
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
        return self._out(x, attended_with_guides(q, k, v, self.heads, mask, guides, options))

    def _out(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        if self.to_gate_logits is not None:
            gates = 2.0 * torch.sigmoid(self.to_gate_logits(x))  # [B, T, H]
            attended = (attended.view(*attended.shape[:2], self.heads, -1) * gates[..., None]).flatten(2)
        out: torch.Tensor = self.to_out[0](attended)
        return out
