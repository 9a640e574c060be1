"""A transformer of tokens and an image that attend to each other (Kirillov et al. 2023, arXiv 2304.02643).

`B` objects, `T` tokens, `S` cells, `D` hidden size.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.families.sam3.layers import HEAD_SIZE, ProjectedAttention
from darkroom.engine.layers.basic import Linear

NARROWING = 2  # of the hidden size, in attention between tokens and image


class TwoWayBlock(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, *, is_first: bool) -> None:
        super().__init__()
        num_heads, inner = hidden_size // HEAD_SIZE, hidden_size // NARROWING
        self.is_first = is_first
        self.self_attn = ProjectedAttention(hidden_size, num_heads)
        self.cross_attn_token_to_image = ProjectedAttention(hidden_size, num_heads, inner)
        self.cross_attn_image_to_token = ProjectedAttention(hidden_size, num_heads, inner)
        self.mlp = nn.Sequential(
            Linear(hidden_size, intermediate_size), nn.ReLU(), Linear(intermediate_size, hidden_size)
        )
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(hidden_size) for _ in range(4))

    def forward(
        self, tokens: torch.Tensor, image: torch.Tensor, token_positions: torch.Tensor, image_positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens [B, T, D] and image [B, S, D]."""
        if self.is_first:
            tokens = self.norm1(self.self_attn(tokens, tokens, tokens))
        else:
            placed = tokens + token_positions
            tokens = self.norm1(tokens + self.self_attn(placed, placed, tokens))
        seen = image + image_positions
        tokens = self.norm2(tokens + self.cross_attn_token_to_image(tokens + token_positions, seen, image))
        tokens = self.norm3(tokens + self.mlp(tokens))
        image = self.norm4(image + self.cross_attn_image_to_token(seen, tokens + token_positions, tokens))
        return tokens, image


class TwoWayTransformer(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TwoWayBlock(hidden_size, intermediate_size, is_first=index == 0) for index in range(num_layers)
        )
        self.final_attn_token_to_image = ProjectedAttention(
            hidden_size, hidden_size // HEAD_SIZE, hidden_size // NARROWING
        )
        self.norm_final = nn.LayerNorm(hidden_size)

    def forward(
        self, image: torch.Tensor, image_positions: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens [B, T, D] and image [B, S, D]. Tokens are their own positions."""
        positions = tokens
        for layer in self.layers:
            tokens, image = layer(tokens, image, positions, image_positions)
        read = self.final_attn_token_to_image(tokens + positions, image + image_positions, image)
        return self.norm_final(tokens + read), image
