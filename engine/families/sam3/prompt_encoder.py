"""Points, boxes and masks as inputs of a mask decoder (Kirillov et al., "Segment Anything", arXiv 2304.02643).

`B` objects, `N` points, `h w` cells of the image, `D` hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.sam3.layers import CellNorm, Table
from darkroom.engine.layers.basic import Conv2d

NEGATIVE, POSITIVE, TOP_LEFT, BOTTOM_RIGHT = range(4)
NOT_A_POINT = -1
MASK_CHANNELS = 4, 16


@dataclass(frozen=True, slots=True)
class Points:
    """Points [B, N, 2] (x, y) in pixels of the square that the network sees, with labels [B, N] of the above."""

    places: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def none(cls, num_objects: int, device: torch.device, dtype: torch.dtype) -> Points:
        """Return the stand-in for no points: one of no label."""
        labels = torch.full((num_objects, 1), NOT_A_POINT, device=device)
        return cls(torch.zeros(num_objects, 1, 2, device=device, dtype=dtype), labels)

    def padded(self) -> Points:
        """Return the points and one more of no label, which prompts without a box have."""
        last = Points.none(len(self.labels), self.labels.device, self.places.dtype)
        return Points(torch.cat((self.places, last.places), 1), torch.cat((self.labels, last.labels), 1))


class FourierPositions(nn.Module):
    """Sines and cosines of random waves over an image, computed in float32."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.positional_encoding_gaussian_matrix = nn.Parameter(torch.empty(2, hidden_size // 2))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Return the features [..., D] of places [..., 2] of 0..1."""
        waves = 2 * math.pi * (2 * places.float() - 1) @ self.positional_encoding_gaussian_matrix.float()
        return torch.cat((waves.sin(), waves.cos()), dim=-1).to(places.dtype)

    def cells(self, height: int, width: int) -> torch.Tensor:
        """Return the features [1, D, height, width] of cells, in float32."""
        device = self.positional_encoding_gaussian_matrix.device
        rows, columns = ((torch.arange(side, device=device) + 0.5) / side for side in (height, width))
        places = torch.stack((columns.expand(height, -1), rows[:, None].expand(-1, width)), dim=-1)
        out: torch.Tensor = self(places)
        return out.permute(2, 0, 1)[None]


class PromptEncoder(nn.Module):
    """Encoder of prompts for an image of `image_px` pixels a side and `cells` cells."""

    def __init__(self, hidden_size: int, image_px: int, cells: int) -> None:
        super().__init__()
        self.image_px, self.num_cells = image_px, cells
        self.pe_layer = FourierPositions(hidden_size)
        self.point_embeddings = nn.ModuleList(Table(1, hidden_size) for _ in range(BOTTOM_RIGHT + 1))
        self.not_a_point_embed = Table(1, hidden_size)
        self.no_mask_embed = Table(1, hidden_size)
        small, large = MASK_CHANNELS
        self.mask_downscaling = nn.Sequential(
            Conv2d(1, small, 2, stride=2), CellNorm(small), nn.GELU(),
            Conv2d(small, large, 2, stride=2), CellNorm(large), nn.GELU(),
            Conv2d(large, hidden_size, 1),
        )  # fmt: skip

    @property
    def mask_px(self) -> int:
        """A side of the masks that it takes."""
        return 4 * self.num_cells

    def cells(self) -> torch.Tensor:
        """Return the positions [1, D, h, w] of the image's cells, in float32."""
        return self.pe_layer.cells(self.num_cells, self.num_cells)

    def tokens(self, points: Points, boxes: torch.Tensor | None) -> torch.Tensor:
        """Return the tokens [B, N + 1 or N + 2, D] of points, and of boxes [B, 2, 2] (their corners) if there are."""
        tokens = self._points(points.padded() if boxes is None else points)
        if boxes is None:
            return tokens
        corners = [self._row(label) for label in (TOP_LEFT, BOTTOM_RIGHT)]
        placed = self.pe_layer((boxes + 0.5) / self.image_px) + torch.cat(corners).to(boxes)
        return torch.cat((tokens, placed), dim=1)

    def _row(self, label: int) -> torch.Tensor:
        return self.point_embeddings[label].get_parameter("weight")

    def _points(self, points: Points) -> torch.Tensor:
        placed = self.pe_layer((points.places + 0.5) / self.image_px)
        labels = points.labels[..., None]
        for label, embedding in enumerate(self.point_embeddings):
            placed = torch.where(labels == label, placed + embedding.weight.to(placed), placed)
        return torch.where(labels == NOT_A_POINT, self.not_a_point_embed.weight.to(placed), placed)

    def mask(self, masks: torch.Tensor | None) -> torch.Tensor:
        """Return the addition to the cells [B or 1, D, h or 1, w or 1], of logits of masks [B, 1, 4 h, 4 w] or none."""
        if masks is None:
            return self.no_mask_embed.weight[..., None, None]
        out: torch.Tensor = self.mask_downscaling(masks)
        return out
