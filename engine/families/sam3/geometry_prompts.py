"""Example boxes as tokens of a prompt. `B` images, `N` boxes, `h w` cells, `D` hidden size."""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.families.sam3.layers import Table, cells_of, sine_features
from darkroom.engine.families.sam3.prompted_layer import PromptedLayer
from darkroom.engine.families.sam3.region_pooling import pooled_regions
from darkroom.engine.layers.basic import Conv2d, Linear

POOLED = 7  # cells of a side of a box
POSITIVE = 1  # the label of a box that shows what is looked for


class GeometryEncoder(nn.Module):
    """Encoder of boxes, and of a token that stands for the image."""

    def __init__(self, hidden_size: int, num_layers: int, intermediate_size: int) -> None:
        super().__init__()
        self.boxes_direct_project = Linear(4, hidden_size)
        self.boxes_pool_project = Conv2d(hidden_size, hidden_size, POOLED)
        self.boxes_pos_enc_project = Linear(hidden_size + 2, hidden_size)
        self.label_embed = Table(2, hidden_size)
        self.cls_embed = Table(1, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.img_pre_norm = nn.LayerNorm(hidden_size)
        self.encode = nn.ModuleList(PromptedLayer(hidden_size, intermediate_size) for _ in range(num_layers))
        self.encode_norm = nn.LayerNorm(hidden_size)
        self.final_proj = Linear(hidden_size, hidden_size)

    def forward(
        self, image: torch.Tensor, positions: torch.Tensor, boxes: torch.Tensor | None, sides: tuple[int, int]
    ) -> torch.Tensor:
        """Return tokens [B, N + 1, D] of boxes [B, N, 4] and of the image [B, h w, D], whose cells have positions."""
        whole: torch.Tensor = self.norm(self.final_proj(self.cls_embed.weight.to(image))).expand(len(image), 1, -1)
        for layer in self.encode:
            whole = layer(whole, keys=image + positions, values=image)
        whole = self.encode_norm(whole)
        if boxes is None:
            return whole
        x = self.norm(self._boxes(image, boxes, sides))
        for layer in self.encode:
            x = layer(x, keys=image, values=image)
        return torch.cat((self.final_proj(self.encode_norm(x)), whole), dim=1)

    def _boxes(self, image: torch.Tensor, boxes: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
        """Return the tokens [B, N, D] of boxes: their coordinates, and what the image has there."""
        own = boxes.to(image)
        cells = cells_of(self.img_pre_norm(image), *sides)
        pooled = torch.stack([pooled_regions(*pair, POOLED) for pair in zip(cells, boxes, strict=True)])
        shape = (*own.shape[:2], -1)
        x = self.boxes_direct_project(own) + self.boxes_pool_project(pooled.flatten(0, 1)).view(shape)
        columns, rows = (sine_features(own[..., axis], cells.shape[1] // 2).to(own.dtype) for axis in (0, 1))
        places = torch.cat((rows, columns, own[..., 3:], own[..., 2:3]), dim=-1)
        out: torch.Tensor = x + self.boxes_pos_enc_project(places) + self.label_embed.weight[POSITIVE].to(x)
        return out
