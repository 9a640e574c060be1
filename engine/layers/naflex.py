"""Embeddings of SigLIP 2 in its NaFlex form (Tschannen et al. 2025, arXiv 2502.14786), for images of any proportions.

`B` images, `H W` pixels, `P` patches, `D` hidden size. Module names are those of the transformers library.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.patches import patches_channels_last


class NaflexEmbeddings(nn.Module):
    """Patches with a square table of positions, which is resized to the rows and columns of each image."""

    def __init__(self, hidden_size: int, patch_px: int, num_positions: int) -> None:
        super().__init__()
        self.patch_px = patch_px
        self.patch_embedding = Linear(3 * patch_px**2, hidden_size)
        self.position_embedding = nn.Embedding(num_positions, hidden_size)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embed normalised pixels [B, 3, H, W] of whole patches as [B, P, D]."""
        tokens: torch.Tensor = self.patch_embedding(patches_channels_last(pixels, self.patch_px))
        rows, columns = (side // self.patch_px for side in pixels.shape[-2:])
        indices = torch.arange(self.position_embedding.num_embeddings, device=tokens.device)
        side = math.isqrt(len(indices))
        table = self.position_embedding(indices).to(tokens).T.reshape(1, -1, side, side)
        resized = functional.interpolate(
            table, size=(rows, columns), mode="bilinear", align_corners=False, antialias=True
        )
        return tokens + resized.flatten(2).transpose(1, 2)
