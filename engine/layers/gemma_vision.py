"""Gemma 3 with its images (Gemma Team 2025, arXiv 2503.19786, section 2): SigLIP's patches as tokens of the text.

`B` images, `P` patches, `D` hidden size of the image encoder, `N` tokens of an image, `L` hidden size of the language
model. Module names are those of the published checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.clip_vision import ClipVisionConfig, ClipVisionTower
from darkroom.engine.layers.language_model import LanguageModel, LanguageModelConfig
from darkroom.engine.layers.norms import OnePlusRmsNorm

TOKENS_PER_SIDE = 16  # of an image, whatever its number of patches


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """Configuration of both networks; `vision` is None for a file without an image encoder."""

    language: LanguageModelConfig
    vision: ClipVisionConfig | None

    @property
    def width(self) -> int:
        """Hidden size of the language model."""
        return self.language.width


class GemmaProjector(nn.Module):
    """Means of neighbouring patches, normed and projected: `forward([B, P, D])` -> [B, N, L]."""

    def __init__(self, config: ClipVisionConfig, hidden_size: int) -> None:
        super().__init__()
        self.mm_input_projection_weight = nn.Parameter(torch.empty(config.width, hidden_size))
        self.mm_soft_emb_norm = OnePlusRmsNorm(config.width)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        side = math.isqrt(patches.shape[1])
        grid = patches.transpose(1, 2).reshape(patches.shape[0], -1, side, side)
        means = functional.avg_pool2d(grid, side // TOKENS_PER_SIDE).flatten(2).transpose(1, 2)  # [B, N, D]
        return torch.matmul(self.mm_soft_emb_norm(means), self.mm_input_projection_weight.to(means.dtype))


def squares_of(images: torch.Tensor, side_px: int) -> torch.Tensor:
    """Return the middle squares of images [B, H, W, 3] of 0..1 as [B, 3, side_px, side_px] of -1..1, in 8 bits."""
    pixels = images.movedim(-1, 1)
    height, width = pixels.shape[2:]
    if (height, width) != (side_px, side_px):
        scale = side_px / min(height, width)
        height, width = round(scale * height), round(scale * width)
        pixels = functional.interpolate(pixels, size=(height, width), mode="bicubic", antialias=True)
        top, left = (height - side_px) // 2, (width - side_px) // 2
        pixels = pixels[..., top : top + side_px, left : left + side_px]
    return ((255.0 * pixels).clip(0, 255).round() / 255.0 - 0.5) / 0.5


class GemmaModel(LanguageModel):
    """A language model with `vision_model` and `multi_modal_projector`, None each where the file has no images."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__(config.language)
        self.vision_model: ClipVisionTower | None = None
        self.multi_modal_projector: GemmaProjector | None = None
        self.image_px = 0
        if config.vision is not None:
            self.vision_model = ClipVisionTower(config.vision)
            self.multi_modal_projector = GemmaProjector(config.vision, config.language.width)
            self.image_px = config.vision.image_px

    def image_tokens(self, images: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, N, L] of images [B, H, W, 3] of 0..1; for a file with an image encoder."""
        assert self.vision_model is not None and self.multi_modal_projector is not None
        patches, *_ = self.vision_model(squares_of(images, self.image_px), None)
        tokens: torch.Tensor = self.multi_modal_projector(patches)
        return tokens
