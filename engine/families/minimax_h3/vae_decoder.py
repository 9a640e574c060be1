"""The decoder of MiniMax H3's video autoencoder: a vision transformer over the latent cells of a clip, of any size.

`B` batch, `T` tokens: the `f h w` cells of a clip, learned registers, and a zero; `D` hidden size, `H` heads of `d`
channels. Positions are those of cells in -1..1 along each axis, the registers' in the centre. Module names are those of
the published file.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import Turns, rotated_halves
from darkroom.engine.layers.video_cells import Stride, unfolded

NORM_EPS = 1e-5
HEAD_DIM = 64
ROTARY_DIM, ROTARY_BASE, NUM_AXES = 48, 100.0, 3  # of the channels of a head, those that rotate
CELL: Stride = (4, 16, 16)  # frames, rows and columns of pixels of a token


def clip_turns(size: tuple[int, int, int], num_others: int, device: torch.device) -> Turns:
    """Return cosines and sines [T, 1, pairs], float32, of a clip of `f h w` cells and other tokens behind it."""
    axes = [(2 * torch.arange(cells, device=device) + 1) / cells - 1 for cells in size]  # centres of cells
    cells = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)  # [f h w, 3]
    positions = torch.cat([cells, cells.new_zeros(num_others, NUM_AXES)])
    steps = torch.arange(0, 1, 2 * NUM_AXES / ROTARY_DIM, device=device)
    angles = (2 * math.pi * positions[..., None] / ROTARY_BASE**steps).flatten(1)[:, None]
    return angles.cos(), angles.sin()


class ClipAttention(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.heads = hidden_size // HEAD_DIM
        self.to_qkv, self.to_out = Linear(hidden_size, 3 * hidden_size), Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        q, k, v = self.to_qkv(x).unflatten(2, (self.heads, 3 * HEAD_DIM)).chunk(3, dim=-1)  # [B, T, H, d] each
        q, k = (rotated_halves(functional.rms_norm(item, (HEAD_DIM,), eps=NORM_EPS), turns) for item in (q, k))
        read = attention(q.flatten(2), k.flatten(2), v.flatten(2), self.heads)
        out: torch.Tensor = self.to_out(read.nan_to_num(0.0))  # float16 may overflow
        return out


class GatedFeedForward(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.w1, self.w2 = Linear(hidden_size, 2 * intermediate_size), Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.w1(x).chunk(2, dim=-1)
        out: torch.Tensor = self.w2(functional.silu(gate) * value)
        return out


class ClipBlock(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(hidden_size, NORM_EPS), RmsNorm(hidden_size, NORM_EPS)
        self.attn, self.ff = ClipAttention(hidden_size), GatedFeedForward(hidden_size, intermediate_size)
        self.scale1, self.scale2 = (nn.Parameter(torch.empty(hidden_size)) for _ in range(2))

    def forward(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), turns) * self.scale1.to(x.dtype)
        out: torch.Tensor = x + self.ff(self.norm2(x)) * self.scale2.to(x.dtype)
        return out


class ClipDecoder(nn.Module):
    """`forward([B, C, f, h, w])` -> pixels `[B, 3, 4 f, 16 h, 16 w]`."""

    def __init__(
        self,
        latent_channels: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_registers: int,
        image_channels: int,
    ) -> None:
        super().__init__()
        self.x_embedder = Linear(latent_channels, hidden_size)
        self.register_tokens = nn.Parameter(torch.empty(1, num_registers, hidden_size))
        self.mask_token = nn.Parameter(torch.empty(1, 1, hidden_size))  # of training; files have it
        self.transformer_blocks = nn.ModuleList(ClipBlock(hidden_size, intermediate_size) for _ in range(num_layers))
        self.norm_out = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.proj_out = Linear(hidden_size, image_channels * math.prod(CELL))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, frames, height, width = x.shape
        cells = self.x_embedder(x.flatten(2).transpose(1, 2))  # [B, f h w, D]
        registers = self.register_tokens.to(cells.dtype).expand(batch, -1, -1)
        tokens = torch.cat([cells, registers, torch.zeros_like(cells[:, :1])], dim=1)
        cos, sin = clip_turns((frames, height, width), tokens.shape[1] - cells.shape[1], x.device)
        turns = cos.to(x.dtype), sin.to(x.dtype)
        for block in self.transformer_blocks:
            tokens = block(tokens, turns)
        pixels = self.proj_out(self.norm_out(tokens))[:, : cells.shape[1]]
        return unfolded(pixels.transpose(1, 2).unflatten(2, (frames, height, width)), CELL)
