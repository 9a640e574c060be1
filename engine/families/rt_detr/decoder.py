"""The decoder of RT-DETR v4: queries whose boxes are refined layer by layer, as distributions of their sides' places.

After Peng et al., "D-FINE: Redefine Regression Task of DETRs as Fine-grained Distribution Refinement" (arXiv
2410.13842), and Zhu et al., "Deformable DETR" (arXiv 2010.04159). `B` images, `S` cells of all levels, `Q` queries, `D`
hidden size, `P` points that a head reads, `R` bins of a side. Boxes are centre, width and height of 0..1. Names of
modules are those of the published files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.rt_detr.encoder import NUM_HEADS, BiasedConv, SelfAttention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children, expect

NUM_QUERIES = 300
COORDINATES = 4
POINTS = (3, 6, 3)
"""Points that a head reads of each level."""

OFFSET_SCALE = 0.5  # of a box, for points around its centre
MARGIN = 0.01  # of an image, at which anchors have no cells
ANCHOR_SIDE = 0.05  # of an anchor of the finest level
MOST_POSITION = 10.0
MOST_VALUE = 65504.0  # of float16
LEAST_SHARE = 1e-5
UP, SIDE_SCALE = 0.5, 8.0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Configuration. `in_size` is the encoder's hidden size, `num_bins` those of a side, `best_bins` those scored."""

    in_size: int = 256
    hidden_size: int = 256
    intermediate_size: int = 1024
    num_layers: int = 6
    num_classes: int = 80
    num_bins: int = 33
    best_bins: int = 4
    quality_size: int = 64


def decoder_config(shapes: Shapes, prefix: str, in_size: int) -> DecoderConfig:
    """Return the configuration of the decoder below `prefix`.

    Raises LookupError for a missing tensor, ValueError for another number of points than the published ones'.
    """
    quality = shapes[f"{prefix}decoder.lqe_layers.0.reg_conf.layers.0.weight"]
    found = shapes[f"{prefix}decoder.layers.0.cross_attn.attention_weights.weight"][0]
    expect("points of attention", found, NUM_HEADS * sum(POINTS))
    return DecoderConfig(
        in_size=in_size,
        hidden_size=shapes[f"{prefix}enc_output.proj.weight"][0],
        intermediate_size=shapes[f"{prefix}decoder.layers.0.linear1.weight"][0],
        num_layers=count_children(shapes, f"{prefix}decoder.layers"),
        num_classes=shapes[f"{prefix}enc_score_head.weight"][0],
        num_bins=shapes[f"{prefix}dec_bbox_head.0.layers.2.weight"][0] // COORDINATES,
        best_bins=quality[1] // COORDINATES - 1,
        quality_size=quality[0],
    )


class SiluMlp(nn.Module):
    """Linear layers with SiLU between them."""

    def __init__(self, *sizes: int) -> None:
        """`sizes` are those of the input, of what is between the layers, and of the output."""
        super().__init__()
        self.layers = nn.ModuleList(Linear(*pair) for pair in zip(sizes[:-1], sizes[1:], strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(functional.silu(x) if index else x)
        return x


class DeformableAttention(nn.Module):
    """Attention of each query to points around its box, in all levels of the image."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.sampling_offsets = Linear(hidden_size, NUM_HEADS * sum(POINTS) * 2)
        self.attention_weights = Linear(hidden_size, NUM_HEADS * sum(POINTS))

    def forward(
        self, queries: torch.Tensor, boxes: torch.Tensor, levels: Sequence[torch.Tensor], shares: torch.Tensor
    ) -> torch.Tensor:
        """Return [B, Q, D] of queries [B, Q, D] at boxes [B, Q, 4].

        `levels` [B heads, D / heads, h, w] are those of the image, `shares` [P, 1] the part of an offset that counts.
        """
        batch, count, size = queries.shape
        offsets = self.sampling_offsets(queries).view(batch, count, NUM_HEADS, -1, 2)
        weights = self.attention_weights(queries).view(batch, count, NUM_HEADS, -1).softmax(dim=-1)
        around = boxes[:, :, None, None]  # for each head and point
        places = around[..., :2] + offsets * shares * around[..., 2:] * OFFSET_SCALE
        grids = (2 * places - 1).transpose(1, 2).flatten(0, 1).split(POINTS, dim=2)  # [B heads, Q, points, 2]
        read = torch.cat([_read(level, grid) for level, grid in zip(levels, grids, strict=True)], dim=-1)
        shared = weights.transpose(1, 2).flatten(0, 1)[:, None]
        out: torch.Tensor = (read * shared).sum(dim=-1)  # [B heads, D / heads, Q]
        return out.reshape(batch, size, count).transpose(1, 2)


def _read(level: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return functional.grid_sample(level, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


class Gate(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gate = Linear(2 * hidden_size, 2 * hidden_size)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return both added, each in the shares that they call for together."""
        of_first, of_second = self.gate(torch.cat((first, second), dim=-1)).sigmoid().chunk(2, dim=-1)
        out: torch.Tensor = self.norm(of_first * first + of_second * second)
        return out


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = SelfAttention(size)
        self.norm1 = nn.LayerNorm(size)
        self.cross_attn = DeformableAttention(size)
        self.gateway = Gate(size)
        self.linear1 = Linear(size, config.intermediate_size)
        self.linear2 = Linear(config.intermediate_size, size)
        self.norm3 = nn.LayerNorm(size)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        boxes: torch.Tensor,
        levels: Sequence[torch.Tensor],
        shares: torch.Tensor,
    ) -> torch.Tensor:
        """Return queries [B, Q, D]. The others are as in `DeformableAttention`."""
        x = self.norm1(x + self.self_attn(x + positions, x))
        x = self.gateway(x, self.cross_attn(x + positions, boxes, levels, shares))
        x = x + self.linear2(functional.relu(self.linear1(x)))
        out: torch.Tensor = self.norm3(x.clamp(-MOST_VALUE, MOST_VALUE))
        return out


class QualityScores(nn.Module):
    """Additions to the logits of classes [B, Q, classes], by how sure the sides of boxes are."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.best_bins = config.best_bins
        self.reg_conf = SiluMlp(COORDINATES * (config.best_bins + 1), config.quality_size, 1)

    def forward(self, logits: torch.Tensor, sides: torch.Tensor) -> torch.Tensor:
        """Return the logits with the addition. `sides` [B, Q, 4 R] are logits of the bins."""
        best, _ = _shares_of_bins(sides).topk(self.best_bins, dim=-1)
        out: torch.Tensor = logits + self.reg_conf(torch.cat((best, best.mean(-1, keepdim=True)), dim=-1).flatten(2))
        return out


class DecoderLayers(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.lqe_layers = nn.ModuleList(QualityScores(config) for _ in range(config.num_layers))
        self.project = nn.Parameter(torch.empty(config.num_bins))


def side_distances(shape: tuple[int, ...]) -> torch.Tensor:
    """Return the distance of each bin [R] of a side, for files without them: they grow by powers from the middle."""
    (num_bins,) = shape
    largest = UP * SIDE_SCALE
    step = (largest + 1) ** (2 / (num_bins - 3))
    inner = [step**power - 1 for power in range(1, (num_bins - 1) // 2)]
    outer = 2 * largest
    return torch.tensor([-outer, *(-distance for distance in reversed(inner)), 0.0, *inner, outer])


class Decoder(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_classes = config.num_classes
        is_same = config.in_size == size
        self.input_proj = nn.ModuleList(
            nn.Identity() if is_same else BiasedConv(config.in_size, size, 1) for _ in POINTS
        )
        self.reg_scale = nn.Parameter(torch.empty(1))
        self.decoder = DecoderLayers(config)
        self.query_pos_head = SiluMlp(COORDINATES, 2 * size, size)
        self.enc_output = nn.ModuleDict({"proj": Linear(size, size), "norm": nn.LayerNorm(size)})
        self.enc_score_head = Linear(size, config.num_classes)
        self.enc_bbox_head = SiluMlp(size, size, size, COORDINATES)
        self.pre_bbox_head = SiluMlp(size, size, size, COORDINATES)
        sides = COORDINATES * config.num_bins
        self.dec_score_head = nn.ModuleList(Linear(size, config.num_classes) for _ in range(config.num_layers))
        self.dec_bbox_head = nn.ModuleList(SiluMlp(size, size, size, sides) for _ in range(config.num_layers))

    def forward(self, levels: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return boxes [B, Q, 4] and logits of classes [B, Q, classes] of levels [B, D, h, w] of an image."""
        levels = [project(level) for project, level in zip(self.input_proj, levels, strict=True)]
        x, boxes = self._best_cells(levels)
        heads = [level.reshape(NUM_HEADS * len(level), -1, *level.shape[2:]) for level in levels]
        shares = torch.cat([x.new_full((count, 1), 1 / count) for count in POINTS])
        network, distances = self.decoder, self.decoder.project.to(x)
        first, before = boxes, torch.zeros_like(x)
        sides = x.new_zeros(())
        for index, layer in enumerate(network.layers):
            positions = self.query_pos_head(boxes).clamp(-MOST_POSITION, MOST_POSITION)
            x = layer(x, positions, boxes, heads, shares)
            if index == 0:
                first = (self.pre_bbox_head(x) + _logits(boxes.clamp(LEAST_SHARE, 1 - LEAST_SHARE))).sigmoid()
            sides = self.dec_bbox_head[index](x + before) + sides
            boxes = self._moved(first, _shares_of_bins(sides) @ distances)
            before = x
        logits = network.lqe_layers[-1](self.dec_score_head[-1](x), sides)
        return boxes, logits

    def _best_cells(self, levels: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cells [B, Q, D] with the surest objects, and the boxes [B, Q, 4] of these."""
        cells = torch.cat([level.flatten(2).transpose(1, 2) for level in levels], dim=1)  # [B, S, D]
        anchors, is_inside = _anchors(levels)
        encoded = self.enc_output["norm"](self.enc_output["proj"](cells * is_inside.to(cells)))
        best = self.enc_score_head(encoded).amax(dim=-1).topk(NUM_QUERIES, dim=-1).indices[..., None]
        chosen = torch.take_along_dim(encoded, best, dim=1)
        placed = self.enc_bbox_head(chosen) + torch.take_along_dim(anchors.to(cells)[None], best, dim=1)
        return chosen, placed.sigmoid()

    def _moved(self, boxes: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """Return boxes whose left, top, right and bottom are moved outwards by distances [B, Q, 4]."""
        scale = self.reg_scale.to(boxes).abs()
        centres, extents = boxes[..., :2], boxes[..., 2:]
        start = centres - (0.5 * scale + distances[..., :2]) * (extents / scale)
        end = centres + (0.5 * scale + distances[..., 2:]) * (extents / scale)
        return torch.cat(((start + end) / 2, end - start), dim=-1)


def _anchors(levels: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [S, 4] of a box for each cell, and whether the box lies within the image [S, 1].

    Of a box at the border they are infinite.
    """
    made = []
    for index, level in enumerate(levels):
        height, width = level.shape[2:]
        columns = (torch.arange(width, device=level.device) + 0.5) / width
        rows = (torch.arange(height, device=level.device) + 0.5) / height
        centres = torch.stack((columns.expand(height, -1), rows[:, None].expand(-1, width)), dim=-1).flatten(0, 1)
        made.append(torch.cat((centres, torch.full_like(centres, ANCHOR_SIDE * 2.0**index)), dim=1))
    boxes = torch.cat(made)
    is_inside = ((boxes > MARGIN) & (boxes < 1 - MARGIN)).all(dim=-1, keepdim=True)
    return torch.where(is_inside, _logits(boxes), float("inf")), is_inside


def _shares_of_bins(sides: torch.Tensor) -> torch.Tensor:
    """Return the shares [B, Q, 4, R] of the bins of each side, of their logits [B, Q, 4 R]."""
    return sides.view(*sides.shape[:-1], COORDINATES, -1).softmax(dim=-1)


def _logits(shares: torch.Tensor) -> torch.Tensor:
    return torch.log(shares / (1 - shares))
