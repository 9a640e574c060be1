"""The layers of HunyuanVideo and HunyuanImage that read the prompt: a small transformer, and a mapper of glyphs.

Kong et al. 2024 (arXiv 2412.03603, section 4.2): the states of a causal language model are refined by attention in both
directions. `B` batch, `T` tokens, `D` width, `H` heads. Module names are those that ComfyUI gives the checkpoints.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.flux.transformer import TIME_WIDTH, Embedder
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, ResidualNorm
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

INNER_FACTOR = 4
NORM_EPS = 1e-6


class RefinerAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = Linear(width, 3 * width), Linear(width, width)


class RefinerBlock(nn.Module):
    """A block of the transformer, whose two gates come from a vector [B, D]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 2 * width))
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=NORM_EPS) for _ in range(2))
        self.self_attn = RefinerAttention(width)
        self.mlp = nn.Sequential(Linear(width, INNER_FACTOR * width), nn.SiLU(), Linear(INNER_FACTOR * width, width))
        self.residual = GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm("none"))

    def forward(
        self, x: torch.Tensor, vec: torch.Tensor, mask: torch.Tensor | None, options: Options | None
    ) -> torch.Tensor:
        first, second = self.adaLN_modulation(vec)[:, None].chunk(2, dim=-1)
        qkv = self.self_attn.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = optimized_attention(q, k, v, self.heads, mask=mask, skip_reshape=True, transformer_options=options)
        x, normed = self.residual_norm(x, self.self_attn.proj(attended), first, None, None, norm=self.norm2)
        out: torch.Tensor = self.residual(x, self.mlp(normed), second)
        return out


class RefinerBlocks(nn.Module):
    def __init__(self, width: int, heads: int, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock(width, heads) for _ in range(num_blocks))


class TokenRefiner(nn.Module):
    """`forward(text [B, T, in], timesteps [B], mask [B, T])` -> `[B, T, D]`. The mask is added to scores."""

    def __init__(self, in_width: int, width: int, heads: int, num_blocks: int) -> None:
        super().__init__()
        self.input_embedder = Linear(in_width, width)
        self.t_embedder, self.c_embedder = Embedder(TIME_WIDTH, width), Embedder(in_width, width)
        self.individual_token_refiner = RefinerBlocks(width, heads, num_blocks)

    def forward(
        self, text: torch.Tensor, timesteps: torch.Tensor, mask: torch.Tensor | None, options: Options | None = None
    ) -> torch.Tensor:
        vec = self.t_embedder(timestep_embedding(timesteps, TIME_WIDTH).to(text.dtype))
        vec = vec + self.c_embedder(text.sum(dim=1) / text.shape[1])
        pairs = None
        if mask is not None:
            rows = mask[:, None, None].expand(-1, -1, mask.shape[1], -1)
            pairs = rows + rows.transpose(2, 3)
        x: torch.Tensor = self.input_embedder(text)
        for block in self.individual_token_refiner.blocks:
            x = block(x, vec, pairs, options)
        return x


class GlyphMapper(nn.Module):
    """The states of a byte-level encoder of the text to draw [B, T, in] as tokens [B, T, D]."""

    def __init__(self, in_width: int, inner_width: int, width: int) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(in_width)
        self.fc1, self.fc2 = Linear(in_width, inner_width), Linear(inner_width, inner_width)
        self.fc3 = Linear(inner_width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc2(functional.gelu(self.fc1(self.layernorm(x))))
        out: torch.Tensor = self.fc3(functional.gelu(x))
        return out
