"""Masks of objects from points, boxes or coarser masks. `B` objects, `h w` cells, `D` hidden size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.sam3.layers import smoothed
from darkroom.engine.families.sam3.mask_decoder import (
    DecodedMasks,
    ImageLevels,
    MaskDecoder,
    MaskDecoderConfig,
    best_masks,
    enlarged,
)
from darkroom.engine.families.sam3.prompt_encoder import Points, PromptEncoder

NO_OBJECT = -1024.0
"""Logit of the masks of objects that are not there."""


@dataclass(frozen=True, slots=True)
class Segmented:
    """Logits of masks [B, 1, 4 h, 4 w], their tokens [B, D], and the logits [B, 1] of the objects being there."""

    masks: torch.Tensor
    tokens: torch.Tensor
    presence: torch.Tensor


def chosen(decoded: DecodedMasks) -> Segmented:
    """Return the best candidate of each object, which has no pixels where it is not there."""
    masks, best = best_masks(decoded.masks, decoded.qualities)
    tokens = torch.take_along_dim(decoded.tokens, best.view(-1, 1, 1), dim=1)[:, 0]
    return Segmented(where_there(masks, decoded.presence), tokens, decoded.presence)


def where_there(masks: torch.Tensor, presence: torch.Tensor) -> torch.Tensor:
    """Return logits of masks [B, K, h, w] without those of objects of a negative logit [B, 1]."""
    return torch.where(presence[..., None, None] > 0, masks, NO_OBJECT)


class Segmenter(nn.Module):
    """Prompt encoder and mask decoder of single objects."""

    def __init__(self, config: MaskDecoderConfig, image_px: int, cells: int) -> None:
        super().__init__()
        self.prompt_encoder = PromptEncoder(config.hidden_size, image_px, cells)
        self.mask_decoder = MaskDecoder(config)
        self.no_memory = nn.Parameter(torch.empty(1, 1, config.hidden_size))

    def forward(
        self,
        levels: ImageLevels,
        *,
        points: Points | None = None,
        boxes: torch.Tensor | None = None,
        masks: torch.Tensor | None = None,
    ) -> Segmented:
        """Decode the mask of each prompt: `boxes` [B, 2, 2] of corners in pixels, `masks` [B, 1, H, W] of logits.

        `levels` are those of `of_image`. A single point is ambiguous: the best of three masks is taken.
        """
        cells, encoder = levels.cells, self.prompt_encoder
        given = next(
            (item for item in (masks, boxes, None if points is None else points.labels) if item is not None), cells
        )
        points_or_none = Points.none(len(given), cells.device, cells.dtype) if points is None else points
        tokens = encoder.tokens(points_or_none, boxes).to(cells)
        dense = encoder.mask(None if masks is None else self._small(masks)).to(cells)
        has_candidates = points is not None and points.labels.shape[1] == 1
        positions = encoder.cells().to(cells)
        return chosen(self.mask_decoder(levels, positions, tokens, dense, has_candidates=has_candidates))

    def of_image(self, finest: torch.Tensor, finer: torch.Tensor, cells: torch.Tensor) -> ImageLevels:
        """Return the levels of an image of which nothing is remembered."""
        return ImageLevels(cells + self.no_memory.to(cells).view(1, -1, 1, 1), finer, finest)

    def _small(self, masks: torch.Tensor) -> torch.Tensor:
        side = self.prompt_encoder.mask_px
        if masks.shape[2:] == (side, side):
            return masks
        return smoothed(masks, (side, side))

    def image_masks(self, segmented: Segmented) -> torch.Tensor:
        """Return the masks in the size of the image that the network sees."""
        return enlarged(segmented.masks, self.prompt_encoder.image_px)
