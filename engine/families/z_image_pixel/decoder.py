"""The network that generates the pixels of each patch, in Z-Image's form without a VAE (Zeta-Chroma, 2026).

Its layers read a patch's noisy pixels as one token, which the transformer's token of that patch modulates. `N` patches
of all images, `P` numbers of a patch's pixels, `D` hidden size of the transformer, `E` that of the decoder. Module
names are those of the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.pixel_positions import position_cosines
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual

NORM_EPS = 1e-6
COMPUTED = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class PixelDecoderConfig:
    """Configuration of the decoder: `patch_dim` numbers of a patch, `context_dim` channels of a transformer's token."""

    patch_dim: int
    hidden_size: int
    context_dim: int
    num_layers: int
    num_frequencies: int = 8


class PatchEmbedder(nn.Module):
    """A layer of a patch's pixels and of products of cosines at its one position: at 0, where every cosine is 1."""

    def __init__(self, config: PixelDecoderConfig) -> None:
        super().__init__()
        self.num_frequencies = config.num_frequencies
        self.embedder = nn.Sequential(Linear(config.patch_dim + config.num_frequencies**2, config.hidden_size))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the embedded patches [N, E] of pixels [N, P]."""
        frequencies = torch.arange(self.num_frequencies, device=pixels.device, dtype=pixels.dtype)
        positions = position_cosines(1, frequencies).expand(pixels.shape[0], -1)
        embedded: torch.Tensor = self.embedder(torch.cat([pixels, positions], dim=-1))
        return embedded


class ResidualLayers(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.mlp = nn.Sequential(Linear(hidden_size, hidden_size), nn.SiLU(), Linear(hidden_size, hidden_size))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(hidden_size, 3 * hidden_size))
        self.adaptive_norm, self.residual = AdaptiveNorm(), GatedResidual()

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Return [N, E] of patches and what modulates them, [N, E] each."""
        shift, scale, gate = self.adaLN_modulation(condition).chunk(3, dim=-1)
        changed = self.mlp(self.adaptive_norm(x, scale, shift, norm=self.in_ln))
        out: torch.Tensor = self.residual(x, changed, gate)
        return out


class LastLayer(nn.Module):
    def __init__(self, config: PixelDecoderConfig) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, config.patch_dim)
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.adaptive_norm(x))
        return out


class PixelDecoder(nn.Module):
    """`forward(pixels [N, P], tokens [N, D])` -> `[N, P]`, computed in the type of the weights if they are floats."""

    def __init__(self, config: PixelDecoderConfig) -> None:
        super().__init__()
        self.cond_embed = Linear(config.context_dim, config.hidden_size)
        self.input_embedder = PatchEmbedder(config)
        self.res_blocks = nn.ModuleList(ResidualLayers(config.hidden_size) for _ in range(config.num_layers))
        self.final_layer = LastLayer(config)

    def forward(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        kept = next(self.cond_embed.parameters()).dtype
        dtype = kept if kept in COMPUTED else pixels.dtype
        x = self.input_embedder(pixels.to(dtype))
        condition = self.cond_embed(tokens.to(dtype))
        for block in self.res_blocks:
            x = block(x, condition)
        out: torch.Tensor = self.final_layer(x).to(pixels.dtype)
        return out
