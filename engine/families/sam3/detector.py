"""The detector of SAM 3: finds everything that a text or example boxes describe, each with a box, a score and a mask.

A transformer in DETR's manner (Carion et al. 2020, arXiv 2005.12872). `B` images, `h w` cells, `D` hidden size, `Q`
queries, `P` tokens of the prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.sam3.geometry_prompts import GeometryEncoder
from darkroom.engine.families.sam3.layers import (
    HEAD_SIZE,
    ProjectedAttention,
    ReluMlp,
    Table,
    sine_features,
    tokens_of,
)
from darkroom.engine.families.sam3.mask_head import MaskHead, PromptScores
from darkroom.engine.families.sam3.prompted_layer import PromptedLayer
from darkroom.engine.layers.basic import Linear

COORDINATES = 4
LEAST = 1e-6
RANGE = 8.0  # of the logarithm of distances
HALF_SIDES = ((1.0, 0.0, -0.5, 0.0), (0.0, 1.0, 0.0, -0.5), (1.0, 0.0, 0.5, 0.0), (0.0, 1.0, 0.0, 0.5))


@dataclass(frozen=True, slots=True)
class DetectorConfig:
    """Configuration: the transformer's sizes, numbers of layers and of queries."""

    hidden_size: int = 256
    intermediate_size: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    num_queries: int = 200
    geometry_layers: int = 3
    geometry_intermediate_size: int = 2048
    scores_intermediate_size: int = 2048
    text_size: int = 1024


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A description as embeddings [1, P, D] of the detector's size; `is_seen` [1, P] is False for padding."""

    tokens: torch.Tensor
    is_seen: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """Mask [1, 1, 1, P] of attention to the tokens.

        On a CPU it is added to the scores, so that padding is attended to as well: ComfyUI's attention there takes
        every mask for numbers to add.
        """
        mask = self.is_seen[:, None, None]
        return mask.to(self.tokens.dtype) if self.tokens.device.type == "cpu" else mask


@dataclass(frozen=True, slots=True)
class Detections:
    """Candidates: boxes [B, Q, 4] (left, top, right, bottom of 0..1), logits [B, Q], and of masks [B, Q, 4 h, 4 w]."""

    boxes: torch.Tensor
    logits: torch.Tensor
    masks: torch.Tensor


class Encoder(nn.Module):
    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            PromptedLayer(config.hidden_size, config.intermediate_size) for _ in range(config.encoder_layers)
        )

    def forward(self, x: torch.Tensor, positions: torch.Tensor, prompt: TextPrompt) -> torch.Tensor:
        mask = prompt.mask
        for layer in self.layers:
            x = layer(x, x_positions=positions, keys=prompt.tokens, values=prompt.tokens, mask=mask)
        return x


class DecoderLayer(nn.Module):
    """Queries attend to one another, to the prompt, and to the image."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        size = config.hidden_size
        num_heads = size // HEAD_SIZE
        self.self_attn = ProjectedAttention(size, num_heads)
        self.cross_attn = ProjectedAttention(size, num_heads)
        self.ca_text = ProjectedAttention(size, num_heads)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(size) for _ in range(3))
        self.catext_norm = nn.LayerNorm(size)
        self.linear1 = Linear(size, config.intermediate_size)
        self.linear2 = Linear(config.intermediate_size, size)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, image: Image, prompt: TextPrompt, bias: torch.Tensor
    ) -> torch.Tensor:
        placed = x + positions
        x = self.norm2(x + self.self_attn(placed, placed, x))
        text = self.ca_text(x + positions, prompt.tokens, prompt.tokens, prompt.mask)
        x = self.catext_norm(x + text)
        x = self.norm1(x + self.cross_attn(x + positions, image.placed, image.tokens, bias))
        out: torch.Tensor = self.norm3(x + self.linear2(functional.relu(self.linear1(x))))
        return out


@dataclass(frozen=True, slots=True)
class Image:
    """Encoded tokens [B, h w, D] of an image, and the same with positions added; cells along its sides."""

    tokens: torch.Tensor
    placed: torch.Tensor
    height: int
    width: int


class Decoder(nn.Module):
    """Queries with reference boxes that each layer refines."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        size = config.hidden_size
        num_heads = size // HEAD_SIZE
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(size)
        self.query_embed = Table(config.num_queries, size)
        self.reference_points = Table(config.num_queries, COORDINATES)
        self.ref_point_head = ReluMlp(2 * size, size, size)
        self.bbox_embed = ReluMlp(size, size, size, COORDINATES)
        self.boxRPB_embed_x = ReluMlp(2, size, num_heads)
        self.boxRPB_embed_y = ReluMlp(2, size, num_heads)
        self.presence_token = Table(1, size)

    def forward(self, image: Image, prompt: TextPrompt) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the queries [B, Q, D] and their boxes [B, Q, 4] (left, top, right, bottom)."""
        batch, size = len(image.tokens), image.tokens.shape[-1]
        x = torch.cat((self.presence_token.weight, self.query_embed.weight)).to(image.tokens).expand(batch, -1, -1)
        boxes = self.reference_points.weight.to(x).expand(batch, -1, -1).sigmoid()  # centre, width, height
        nowhere = x.new_zeros(batch, 1, size)
        for index, layer in enumerate(self.layers):
            if index:
                boxes = (inverse_sigmoid(boxes) + self.bbox_embed(self.norm(x[:, 1:]))).sigmoid()
            places = sine_features(boxes, size // 2).flatten(2).to(x.dtype)
            positions = torch.cat((nowhere, self.ref_point_head(places)), dim=1)
            x = layer(x, positions, image, prompt, self._bias(boxes, image.height, image.width))
        queries = self.norm(x[:, 1:])
        boxes = (inverse_sigmoid(boxes) + self.bbox_embed(queries)).sigmoid()
        return queries, corners(boxes)

    def _bias(self, boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return the bias of the scores [B, heads, 1 + Q, h w], functions of the distances to the boxes' sides."""
        left, top, right, bottom = corners(boxes).unbind(-1)
        sides = ((left, right, width, self.boxRPB_embed_x), (top, bottom, height, self.boxRPB_embed_y))
        columns, rows = (self._bias_along(torch.stack(pair, -1), count, net) for *pair, count, net in sides)
        bias = (rows.unsqueeze(3) + columns.unsqueeze(2)).flatten(2, 3).permute(0, 3, 1, 2)
        return functional.pad(bias, (0, 0, 1, 0))

    @staticmethod
    def _bias_along(sides: torch.Tensor, num_cells: int, network: ReluMlp) -> torch.Tensor:
        cells = torch.arange(num_cells, dtype=torch.float32, device=sides.device) / num_cells
        distances = (cells[:, None] - sides[:, :, None]) * RANGE
        scaled = torch.sign(distances) * torch.log2(distances.abs() + 1.0) / math.log2(RANGE)
        out: torch.Tensor = network(scaled.to(sides.dtype))
        return out


def inverse_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.log(x / (1 - x + LEAST) + LEAST)


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """Return left, top, right and bottom of boxes [..., 4] of centre, width and height."""
    x, y, width, height = boxes.unbind(-1)
    return torch.stack((x - 0.5 * width, y - 0.5 * height, x + 0.5 * width, y + 0.5 * height), dim=-1)


class Transformer(nn.Module):
    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)


class Detector(nn.Module):
    """All of the detector but the image encoder."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.transformer = Transformer(config)
        self.segmentation_head = MaskHead(size)
        self.geometry_encoder = GeometryEncoder(size, config.geometry_layers, config.geometry_intermediate_size)
        self.dot_prod_scoring = PromptScores(size, config.scores_intermediate_size)

    def forward(
        self,
        levels: list[torch.Tensor],
        positions: torch.Tensor,
        text: TextPrompt,
        boxes: torch.Tensor | None = None,
    ) -> Detections:
        """Detect what the text and the boxes describe.

        `levels` are those of the pyramid, of which the third is the encoder's; `positions` [1, h w, D] those of its
        cells. `boxes` [1, N, 4] are examples: centre, width and height of 0..1.
        """
        cells = levels[2]
        height, width = cells.shape[2:]
        tokens = tokens_of(cells)
        examples = self.geometry_encoder(tokens, positions, boxes, (height, width))
        prompt = _joined(text, examples)
        encoded = self.transformer.encoder(tokens, positions, prompt)
        image = Image(encoded, encoded + positions, height, width)
        queries, found = self.transformer.decoder(image, prompt)
        logits = self.dot_prod_scoring(queries, prompt.tokens, prompt.is_seen)
        masks = self.segmentation_head(queries, levels, encoded, prompt.tokens, prompt.mask)
        return Detections(found, logits, masks)


def _joined(text: TextPrompt, examples: torch.Tensor) -> TextPrompt:
    seen = text.is_seen.new_ones(len(examples), examples.shape[1])
    return TextPrompt(torch.cat((text.tokens, examples), dim=1), torch.cat((text.is_seen, seen), dim=1))
