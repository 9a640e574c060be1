"""The transformer of HunyuanVideo 1.5 (Tencent Hunyuan 2025, arXiv 2511.18870), of any width and depth.

HunyuanVideo's blocks of two streams. The condition has the tokens of an image encoder, of the text to draw and of the
prompt, in this order, each with a vector for its kind. `B` batch, `T` tokens, `D` width. Module names are those that
ComfyUI gives the checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.hunyuan_video.transformer import (
    HunyuanVideoConfig,
    HunyuanVideoTransformer,
    hunyuan_video_config,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes

KINDS = "cond_type_embedding.weight"
IMAGES = "vision_in.proj.0.weight"
PROMPT, GLYPHS, IMAGE = range(3)  # rows of the vectors of kinds


def hunyuan_video15_config(shapes: Shapes) -> HunyuanVideoConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    image_dim = shapes[IMAGES][0] if IMAGES in shapes else 0
    config = hunyuan_video_config(shapes)
    return replace(config, has_kinds=KINDS in shapes, image_dim=image_dim, sums_times=image_dim > 0)


class ImageMapper(nn.Module):
    """The tokens of an image encoder [B, T, in] as tokens [B, T, D]."""

    def __init__(self, in_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(
            nn.LayerNorm(in_dim), Linear(in_dim, in_dim), nn.GELU(), Linear(in_dim, hidden_size),
            nn.LayerNorm(hidden_size),
        )  # fmt: skip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(tokens)
        return out


class HunyuanVideo15Transformer(HunyuanVideoTransformer):
    """HunyuanVideo's network that also takes `clip_fea` [B, T, image_dim], the tokens of an image encoder."""

    def __init__(self, config: HunyuanVideoConfig) -> None:
        super().__init__(config)
        if config.image_dim:
            self.vision_in = ImageMapper(config.image_dim, config.width)
        if config.has_kinds:
            self.cond_type_embedding = nn.Embedding(3, config.width)

    def joined_text(
        self,
        text: torch.Tensor,
        mask: torch.Tensor | None,
        txt_byt5: torch.Tensor | None,
        clip_fea: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the tokens of an image, of the text to draw and of the refined text [B, T, D], and their mask."""
        parts = [self._of_kind(text, PROMPT)]
        if self.config.glyph_width and txt_byt5 is not None:
            parts.insert(0, self._of_kind(self.byt5_in(txt_byt5), GLYPHS))
        if self.config.image_dim and clip_fea is not None:
            parts.insert(0, self._of_kind(self.vision_in(clip_fea), IMAGE))
        joined = torch.cat(parts, dim=1)
        masks = None if mask is None else functional.pad(mask, (joined.shape[1] - text.shape[1], 0))
        return joined, masks

    def _of_kind(self, tokens: torch.Tensor, kind: int) -> torch.Tensor:
        """Return tokens with the vector of their kind, where the network has those."""
        return tokens + self.cond_type_embedding.weight[kind].to(tokens) if self.config.has_kinds else tokens
