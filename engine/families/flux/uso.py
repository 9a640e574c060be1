"""The style projector of USO (Wu et al. 2025, arXiv 2508.18966): outputs of three layers of an image encoder as text.

`B` images, `T` tokens of the image encoder, `D` its width, `N` tokens of style for each layer, `C` width of the
text in the transformer. Module names are those of the original file behind `feature_embedder.`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear

LEVELS = ("high", "mid", "low")  # the last layer but one, then earlier ones


@dataclass(frozen=True, slots=True)
class UsoProjectorConfig:
    num_tokens: int = 729
    num_styles: int = 64
    width: int = 1152
    inner_width: int = 3072


class UsoProjector(nn.Module):
    """`forward(low, mid and high outputs [3, B, T, D])` -> tokens of style [B, 3 * N, C], in the weights' type."""

    def __init__(self, config: UsoProjectorConfig) -> None:
        super().__init__()
        self.config = config
        for level in LEVELS:
            setattr(
                self,
                f"{level}_embedding_linear",
                nn.Sequential(Linear(config.num_tokens, config.num_styles), nn.SiLU()),
            )
            setattr(self, f"{level}_layer_norm", nn.LayerNorm(config.width))
            setattr(self, f"{level}_projection", Linear(config.width, config.inner_width))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.get_parameter("high_projection.weight").dtype

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        low, mid, high = outputs.to(self.dtype)
        return torch.cat([self._tokens(level, item) for level, item in zip(LEVELS, (high, mid, low), strict=True)], 1)

    def _tokens(self, level: str, output: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, N, C] of one layer's output [B, T, D]."""
        embedding, norm, projection = (
            self.get_submodule(f"{level}_{part}") for part in ("embedding_linear", "layer_norm", "projection")
        )
        mixed: torch.Tensor = embedding(output.transpose(1, 2)).transpose(1, 2)
        tokens: torch.Tensor = projection(norm(mixed))
        return tokens
