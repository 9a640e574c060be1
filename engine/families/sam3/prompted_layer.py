"""A layer of transformers that attend to themselves and to a prompt, or to an image.

`B` batch, `T` and `S` tokens, `D` hidden size.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.sam3.layers import HEAD_SIZE, ProjectedAttention
from darkroom.engine.layers.basic import Linear


class PromptedLayer(nn.Module):
    """Self-attention, attention to other tokens, and a feed-forward, each normed before: [B, T, D] -> [B, T, D]."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        num_heads = hidden_size // HEAD_SIZE
        self.self_attn = ProjectedAttention(hidden_size, num_heads)
        self.cross_attn_image = ProjectedAttention(hidden_size, num_heads)
        self.linear1 = Linear(hidden_size, intermediate_size)
        self.linear2 = Linear(intermediate_size, hidden_size)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(hidden_size) for _ in range(3))

    def forward(
        self,
        x: torch.Tensor,
        *,
        keys: torch.Tensor,
        values: torch.Tensor,
        x_positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend to `keys` and `values` [B, S, D] by `mask`, as `ProjectedAttention` does.

        `x_positions` are added to `x` itself.
        """
        normed = self.norm1(x)
        placed = normed if x_positions is None else normed + x_positions
        x = x + self.self_attn(placed, placed, normed)
        x = x + self.cross_attn_image(self.norm2(x), keys, values, mask)
        out: torch.Tensor = x + self.linear2(functional.relu(self.linear1(self.norm3(x))))
        return out
