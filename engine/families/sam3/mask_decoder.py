"""Decoders of masks: of one object from a prompt (arXiv 2304.02643), and of several objects at once.

`B` objects, or groups of `M` objects; `h w` cells of the image, `D` hidden size, `K` masks of each object.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.sam3.layers import CellNorm, ReluMlp, Table, cells_of, tokens_of
from darkroom.engine.families.sam3.two_way_transformer import TwoWayTransformer
from darkroom.engine.layers.basic import Conv2d

NUM_CANDIDATES = 3


@dataclass(frozen=True, slots=True)
class ImageLevels:
    """Cells [B or 1, D, h, w] of an image, and finer ones: [.., 2 h, 2 w] and [.., 4 h, 4 w]."""

    cells: torch.Tensor
    double: torch.Tensor
    quadruple: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodedMasks:
    """Logits of masks [B, K, 4 h, 4 w], their estimated quality [B, K], and their tokens [B, K, D].

    `presence` are the logits [B, 1] of objects being there. Of groups, `M` stands behind `B`, and each object has one
    token.
    """

    masks: torch.Tensor
    qualities: torch.Tensor
    tokens: torch.Tensor
    presence: torch.Tensor


@dataclass(frozen=True, slots=True)
class MaskDecoderConfig:
    hidden_size: int = 256
    intermediate_size: int = 2048
    num_layers: int = 2


class MaskUpscaling(nn.Module):
    """Image reader that both decoders share: cells [B, D, h, w] -> pixels [B, D / 8, 4 h, 4 w]."""

    def __init__(self, config: MaskDecoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.transformer = TwoWayTransformer(size, config.intermediate_size, config.num_layers)
        self.output_upscaling = nn.Sequential(
            nn.ConvTranspose2d(size, size // 4, 2, stride=2), CellNorm(size // 4), nn.GELU(),
            nn.ConvTranspose2d(size // 4, size // 8, 2, stride=2), nn.GELU(),
        )  # fmt: skip
        self.conv_s0 = Conv2d(size, size // 8, 1)
        self.conv_s1 = Conv2d(size, size // 4, 1)

    def read(
        self, tokens: torch.Tensor, levels: ImageLevels, dense: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens after the transformer, and the pixels. `dense` is added to the cells."""
        batch = len(tokens)
        cells = (levels.cells + dense).expand(batch, -1, -1, -1)
        height, width = cells.shape[2:]
        placed = tokens_of(positions).expand(batch, -1, -1)
        tokens, image = self.transformer(tokens_of(cells), placed, tokens)
        first, norm, activation, second, last = self.output_upscaling
        x = activation(norm(first(cells_of(image, height, width)) + self.conv_s1(levels.double)))
        x = last(second(x) + self.conv_s0(levels.quadruple))
        return tokens, x


class MaskDecoder(MaskUpscaling):
    """Decoder of the masks of single objects: one, or three candidates."""

    def __init__(self, config: MaskDecoderConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.iou_token = Table(1, size)
        self.mask_tokens = Table(1 + NUM_CANDIDATES, size)
        self.obj_score_token = Table(1, size)
        self.output_hypernetworks_mlps = nn.ModuleList(
            ReluMlp(size, size, size, size // 8) for _ in range(1 + NUM_CANDIDATES)
        )
        self.iou_prediction_head = ReluMlp(size, size, size, 1 + NUM_CANDIDATES)
        self.pred_obj_score_head = ReluMlp(size, size, size, 1)

    def forward(
        self,
        levels: ImageLevels,
        positions: torch.Tensor,
        prompt: torch.Tensor,
        dense: torch.Tensor,
        *,
        has_candidates: bool,
    ) -> DecodedMasks:
        """Decode the masks of prompts [B, N, D] with `dense` of `PromptEncoder.mask`."""
        own = torch.cat([table.weight for table in (self.obj_score_token, self.iou_token, self.mask_tokens)])
        tokens = torch.cat((own.to(prompt).expand(len(prompt), -1, -1), prompt), dim=1)
        tokens, pixels = self.read(tokens, levels, dense, positions)
        of_masks = tokens[:, 2 : 3 + NUM_CANDIDATES]
        weights = [net(of_masks[:, index]) for index, net in enumerate(self.output_hypernetworks_mlps)]
        masks = torch.einsum("bkc,bchw->bkhw", torch.stack(weights, dim=1), pixels)
        taken = slice(1, None) if has_candidates else slice(0, 1)
        qualities = self.iou_prediction_head(tokens[:, 1])[:, taken]
        return DecodedMasks(masks[:, taken], qualities, of_masks[:, taken], self.pred_obj_score_head(tokens[:, 0]))


class GroupMaskDecoder(MaskUpscaling):
    """Decoder of three candidates for each object of groups, without prompts."""

    def __init__(self, config: MaskDecoderConfig, group_size: int) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.group_size = group_size
        self.obj_score_token = Table(group_size, size)
        self.iou_token = Table(group_size, size)
        self.mask_tokens = Table(group_size * NUM_CANDIDATES, size)
        self.output_hypernetworks_mlps = nn.ModuleList(
            ReluMlp(size, size, size, size // 8) for _ in range(NUM_CANDIDATES)
        )
        self.iou_prediction_head = ReluMlp(size, size, size, NUM_CANDIDATES)
        self.pred_obj_score_head = ReluMlp(size, size, size, 1)

    def forward(self, levels: ImageLevels, positions: torch.Tensor, of_objects: torch.Tensor) -> DecodedMasks:
        """Decode the masks of groups, with `of_objects` [B, M, D] added to the tokens of each object's masks."""
        batch, count, size = of_objects.shape
        table = self.mask_tokens.weight.to(of_objects).view(1, count, NUM_CANDIDATES, size)
        others = torch.cat((self.obj_score_token.weight, self.iou_token.weight)).to(of_objects)
        tokens = torch.cat((others.expand(batch, -1, -1), (table + of_objects[:, :, None]).flatten(1, 2)), dim=1)
        tokens, pixels = self.read(tokens, levels, tokens.new_zeros(()), positions)
        of_masks = tokens[:, 2 * count :].view(batch, count, NUM_CANDIDATES, size)
        weights = [net(of_masks[:, :, index]) for index, net in enumerate(self.output_hypernetworks_mlps)]
        masks = torch.einsum("bmkc,bchw->bmkhw", torch.stack(weights, dim=2), pixels)
        qualities = self.iou_prediction_head(tokens[:, count : 2 * count])
        return DecodedMasks(masks, qualities, of_masks[:, :, 0], self.pred_obj_score_head(tokens[:, :count]))


def best_masks(masks: torch.Tensor, qualities: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best of the candidates [B, K, ...] as [B, 1, ...], and its index [B]."""
    best = qualities.argmax(dim=-1)
    index = best.view(-1, *(1 for _ in masks.shape[1:]))
    return torch.take_along_dim(masks, index, dim=1), best


def enlarged(masks: torch.Tensor, side: int) -> torch.Tensor:
    """Return logits of masks [B, K, h, w] at `side` x `side` px."""
    return functional.interpolate(masks, size=(side, side), mode="bilinear")
