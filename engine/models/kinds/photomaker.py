"""PhotoMaker (Li et al. 2023, arXiv 2312.04461): a person's image fused with the word of a prompt that stands for it.

`T` tokens, `D` width of a prompt's tokens, the width of both projections together. Module names are those of its files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.clip_vision import ClipVisionConfig, ClipVisionTower


@dataclass(frozen=True, slots=True)
class PhotoMakerConfig:
    """Configuration: `second_width` is that of the second projection of an image."""

    vision: ClipVisionConfig
    second_width: int

    @property
    def token_width(self) -> int:
        return self.vision.projection_width + self.second_width


class FusionMlp(nn.Module):
    """Two layers behind a norm; added to their input where they keep its width."""

    def __init__(self, width: int, inner_width: int, *, is_residual: bool) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(width)
        self.fc1, self.fc2 = Linear(width, inner_width), Linear(inner_width, inner_width)
        self.is_residual = is_residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(self.layernorm(x))))
        return x + out if self.is_residual else out


class FuseModule(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp1 = FusionMlp(width * 2, width, is_residual=False)
        self.mlp2 = FusionMlp(width, width, is_residual=True)
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, word: torch.Tensor, person: torch.Tensor) -> torch.Tensor:
        """Return the fusion [B, D] of a word's tokens and of images of a person, [B, D] each."""
        fused: torch.Tensor = self.layer_norm(self.mlp2(self.mlp1(torch.cat([word, person], dim=-1)) + word))
        return fused


class PhotoMaker(nn.Module):
    """Image encoder of two projections, and their fusion with a word. It computes in float32."""

    def __init__(self, config: PhotoMakerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.vision.width
        self.vision_model = ClipVisionTower(config.vision)
        self.visual_projection = Linear(width, config.vision.projection_width, bias=False)
        self.visual_projection_2 = Linear(width, config.second_width, bias=False)
        self.fuse_module = FuseModule(config.token_width)

    def forward(self, pixel_values: torch.Tensor, tokens: torch.Tensor, place: int) -> torch.Tensor:
        """Return a prompt's tokens [1, T, D] with the one at `place` fused with the first of the images.

        `pixel_values` [B, 3, image_px, image_px] come from `engine/images/vision_pixels.py`. A place behind the end
        of the prompt changes nothing.
        """
        if place >= tokens.shape[1]:
            return tokens
        _, _, pooled = self.vision_model(pixel_values[:1], None)
        person = torch.cat([self.visual_projection(pooled), self.visual_projection_2(pooled)], dim=-1)
        fused = tokens.clone()
        fused[:, place] = self.fuse_module(tokens[:, place], person.to(tokens))
        return fused
