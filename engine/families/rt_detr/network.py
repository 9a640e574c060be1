"""RT-DETR v4: boxes of objects of 80 classes in images.

`B` images, `N` detections. Images are squares of 640 px.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.rt_detr.backbone import BackboneConfig, HGNetv2, StageConfig
from darkroom.engine.families.rt_detr.decoder import NUM_QUERIES, Decoder, DecoderConfig
from darkroom.engine.families.rt_detr.encoder import EncoderConfig, HybridEncoder

IMAGE_PX = 640
LARGE_BACKBONE = BackboneConfig(
    32,
    (
        StageConfig(64, 64, 128, 1, 6, 3, is_light=False, is_halved=False),
        StageConfig(128, 128, 512, 2, 6, 3, is_light=False, is_halved=True),
        StageConfig(512, 256, 1024, 5, 6, 5, is_light=True, is_halved=True),
        StageConfig(1024, 512, 2048, 2, 6, 5, is_light=True, is_halved=True),
    ),
)


@dataclass(frozen=True, slots=True)
class RtDetrConfig:
    """Configuration of all parts; the default is the published network of the largest size, X."""

    backbone: BackboneConfig = LARGE_BACKBONE
    encoder: EncoderConfig = EncoderConfig((512, 1024, 2048), hidden_size=384, block_channels=192)
    decoder: DecoderConfig = DecoderConfig(in_size=384)


@dataclass(frozen=True, slots=True)
class Detections:
    """Detections of images, the surest first.

    Boxes [B, N, 4] are left, top, right and bottom of 0..1, labels [B, N] numbers of classes, scores [B, N] of 0..1.
    """

    boxes: torch.Tensor
    labels: torch.Tensor
    scores: torch.Tensor


class RtDetr(nn.Module):
    def __init__(self, config: RtDetrConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = HGNetv2(config.backbone)
        self.encoder = HybridEncoder(config.encoder)
        self.decoder = Decoder(config.decoder)

    def forward(self, images: torch.Tensor) -> Detections:
        """Detect objects in images [B, 3, 640, 640] of 0..1: as many as there are queries."""
        boxes, logits = self.decoder(self.encoder(self.backbone(images)))
        centres, halves = boxes[..., :2], boxes[..., 2:] / 2
        corners = torch.cat((centres - halves, centres + halves), dim=-1)
        scores, index = logits.sigmoid().flatten(1).topk(NUM_QUERIES, dim=-1)
        num_classes = logits.shape[-1]
        chosen = torch.div(index, num_classes, rounding_mode="floor")[..., None]
        return Detections(torch.take_along_dim(corners, chosen, dim=1), index % num_classes, scores)
