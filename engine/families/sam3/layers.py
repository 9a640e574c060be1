"""Layers that the parts of SAM 3 share. `B` batch, `T` tokens, `D` hidden size, `h w` cells.

Names of modules are those of the published files, with fused projections taken apart.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear

HEAD_SIZE = 32
"""Channels of a head of every attention but the image encoder's and that of masks' tokens."""

TEMPERATURE = 10000.0
FULL_TURN = 2 * math.pi


class ProjectedAttention(nn.Module):
    """Attention with projections of queries, keys and values: [B, T, D] and [B, S, `key_size`] -> [B, T, D]."""

    def __init__(self, hidden_size: int, num_heads: int, inner_size: int | None = None) -> None:
        super().__init__()
        inner = hidden_size if inner_size is None else inner_size
        self.num_heads = num_heads
        self.q_proj = Linear(hidden_size, inner)
        self.k_proj = Linear(hidden_size, inner)
        self.v_proj = Linear(hidden_size, inner)
        self.out_proj = Linear(inner, hidden_size)

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend. `mask` is added to the scores, or is True for keys that are seen."""
        q, k, v = self.q_proj(queries), self.k_proj(keys), self.v_proj(values)
        out: torch.Tensor = self.out_proj(attention(q, k, v, self.num_heads, mask))
        return out


class ReluMlp(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, *sizes: int) -> None:
        """`sizes` are those of the input, of what is between the layers, and of the output."""
        super().__init__()
        self.layers = nn.ModuleList(Linear(*pair) for pair in zip(sizes[:-1], sizes[1:], strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(functional.relu(x) if index else x)
        return x


class Table(nn.Module):
    """Learned rows [N, D], read as a whole: what reads them does not call the module."""

    def __init__(self, num_rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, size))


class CellNorm(nn.LayerNorm):
    """Layer norm of the channels of each cell of [B, C, h, w]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def sine_features(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Return sines and cosines in turn [..., size] of positions [...] of 0..1, in float32 (Carion et al. 2020)."""
    steps = torch.arange(size // 2, dtype=torch.float32, device=positions.device)
    waves = positions.float()[..., None] * FULL_TURN / TEMPERATURE ** (2 * steps / size)
    # Channel 2 n is the sine and 2 n + 1 the cosine of one wave.
    return torch.stack((waves.sin(), waves.cos()), dim=-1).flatten(-2)


def cell_positions(height: int, width: int, size: int, device: torch.device) -> torch.Tensor:
    """Return the features [1, h w, size] of the cells of an image, the first half of rows, the other of columns."""
    rows, columns = (
        sine_features(torch.arange(side, dtype=torch.float32, device=device) / (side - 1 + 1e-6), size // 2)
        for side in (height, width)
    )
    pairs = (rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1))
    return torch.cat(pairs, dim=-1).flatten(0, 1)[None]


def tokens_of(cells: torch.Tensor) -> torch.Tensor:
    """Return cells [B, C, h, w] as tokens [B, h w, C]."""
    return cells.flatten(2).transpose(1, 2)


def cells_of(tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return tokens [B, h w, C] as cells [B, C, h, w]."""
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, height, width)


def smoothed(masks: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
    """Return masks [B, K, H, W] at other sides, antialiased; in float32, as no CPU computes it in half of that."""
    resized = functional.interpolate(masks.float(), size=sides, mode="bilinear", antialias=True)
    return resized.to(masks.dtype)
