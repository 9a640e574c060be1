"""GLIGEN (Li et al. 2023, arXiv 2301.07093): gated attention of the UNet's transformers to the contents of boxes.

Module names are those of the original files. `B` batch, `N` boxes, `T` latent cells, `D` the text's width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.call_options import CallOptions
from darkroom.engine.layers.unet_layers import CrossAttention, FeedForward

MAX_BOXES = 30
NUM_FREQUENCIES = 8
TEMPERATURE = 100
POSITION_WIDTH = NUM_FREQUENCIES * 2 * 4  # sine and cosine of the two corners
HIDDEN_WIDTH = 512

# The text's pooled embedding [1, D], and height, width, y, x in latent cells.
Box = tuple[torch.Tensor, int, int, int, int]
Patch = Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]


class GatedSelfAttention(nn.Module):
    """Attention of an image's cells to themselves and to the boxes, through gates that start at 0 in training."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        super().__init__()
        self.linear = Linear(context_width, width)
        self.attn = CrossAttention(width, width, heads)
        self.ff = FeedForward(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.alpha_attn = nn.Parameter(torch.zeros(()))
        self.alpha_dense = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        """Return `x` [B, T, C] with gated attention to `boxes` [B, N, D]."""
        seen = self.norm1(torch.cat([x, self.linear(boxes)], dim=1))
        x = x + torch.tanh(self.alpha_attn) * self.attn(seen)[:, : x.shape[1]]
        out: torch.Tensor = x + torch.tanh(self.alpha_dense) * self.ff(self.norm2(x))
        return out


class PositionNet(nn.Module):
    """Network that encodes the content and position of a box as one token."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.linears = nn.Sequential(
            Linear(text_width + POSITION_WIDTH, HIDDEN_WIDTH),
            nn.SiLU(),
            Linear(HIDDEN_WIDTH, HIDDEN_WIDTH),
            nn.SiLU(),
            Linear(HIDDEN_WIDTH, width),
        )
        self.null_positive_feature = nn.Parameter(torch.zeros(text_width))
        self.null_position_feature = nn.Parameter(torch.zeros(POSITION_WIDTH))

    def forward(self, corners: torch.Tensor, is_there: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """Encode boxes as tokens [N, W].

        `corners` [N, 4] are fractions of the image, `is_there` [N, 1] is 0 or 1, `texts` is [N, D].
        """
        frequencies = TEMPERATURE ** (torch.arange(NUM_FREQUENCIES, device=corners.device) / NUM_FREQUENCIES)
        waves = [wave(frequency * corners) for frequency in frequencies for wave in (torch.sin, torch.cos)]
        positions = torch.cat(waves, dim=-1)
        texts = texts * is_there + (1 - is_there) * self.null_positive_feature
        positions = positions * is_there + (1 - is_there) * self.null_position_feature
        tokens: torch.Tensor = self.linears(torch.cat([texts, positions], dim=-1))
        return tokens


class Gligen(nn.Module):
    """The gates of all transformers of a UNet, in its order. Makes the patch between their attentions.

    `heads` returns the number of attention heads at a width.
    """

    def __init__(
        self, widths: Sequence[int], context_width: int, text_width: int, *, heads: Callable[[int], int]
    ) -> None:
        super().__init__()
        self.text_width = text_width
        self.module_list = nn.ModuleList(GatedSelfAttention(width, context_width, heads(width)) for width in widths)
        self.position_net = PositionNet(text_width, context_width)

    def set_position(self, latent_shape: Sequence[int], boxes: Sequence[Box], device: torch.device) -> Patch:
        """Return the patch for a latent [B, C, h, w]; boxes beyond the maximum number are ignored."""
        batch, _, height, width = latent_shape
        corners, is_there = torch.zeros(MAX_BOXES, 4), torch.zeros(MAX_BOXES, 1)
        texts = torch.zeros(MAX_BOXES, self.text_width)
        for index, (text, box_height, box_width, y, x) in enumerate(boxes[:MAX_BOXES]):
            corners[index] = torch.tensor((x / width, y / height, (x + box_width) / width, (y + box_height) / height))
            is_there[index], texts[index] = 1.0, text[0].float()
        return self._patch(batch, corners.to(device), is_there.to(device), texts.to(device))

    def set_empty(self, latent_shape: Sequence[int], device: torch.device) -> Patch:
        """Return the patch for a side of guidance that has no boxes."""
        return self.set_position(latent_shape, (), device)

    def _patch(self, batch: int, corners: torch.Tensor, is_there: torch.Tensor, texts: torch.Tensor) -> Patch:
        tokens = self.position_net(corners, is_there, texts).expand(batch, -1, -1)

        def attend(x: torch.Tensor, options: CallOptions) -> torch.Tensor:
            gate = self.module_list[options["transformer_index"]]
            attended: torch.Tensor = gate(x.to(tokens.dtype), tokens)
            return attended.to(x.dtype)

        return attend
