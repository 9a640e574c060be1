"""RT-DETR v4 (arXiv 2510.25257): boxes of objects of the 80 classes of COCO."""

from __future__ import annotations

import torch

from darkroom.engine.families.base import Network
from darkroom.engine.families.rt_detr.backbone import BackboneConfig, StageConfig
from darkroom.engine.families.rt_detr.decoder import SIDE_SCALE, DecoderConfig, side_distances
from darkroom.engine.families.rt_detr.encoder import EncoderConfig
from darkroom.engine.families.rt_detr.network import RtDetr, RtDetrConfig
from darkroom.engine.families.rt_detr.network_files import rt_detr_config, rt_detr_names
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.settings import DtypePolicy

SMALL = RtDetrConfig(
    BackboneConfig(
        8,
        (
            StageConfig(16, 8, 16, 1, 2, 3, is_light=False, is_halved=False),
            StageConfig(16, 8, 32, 2, 2, 3, is_light=False, is_halved=True),
            StageConfig(32, 16, 32, 2, 2, 5, is_light=True, is_halved=True),
            StageConfig(32, 16, 64, 1, 2, 5, is_light=True, is_halved=True),
        ),
    ),
    EncoderConfig((32, 32, 64), hidden_size=32, intermediate_size=64, block_channels=16, num_bottlenecks=1),
    DecoderConfig(in_size=32, hidden_size=64, intermediate_size=64, num_layers=2),
)

FAMILY = VisionFamily(
    name="rt_detr",
    label="RT-DETR v4",
    detect=rt_detr_names,
    variant_of=lambda shapes: "RT-DETR v4",
    network=Network(
        layouts=(rt_detr_names,),
        in_checkpoint=(rt_detr_names,),
        configure=rt_detr_config,
        build=RtDetr,
        dtypes=DtypePolicy(prefers=()),
        defaults={
            "decoder.decoder.project": side_distances,
            "decoder.reg_scale": lambda shape: torch.full(shape, SIDE_SCALE),
        },
        sizes={"full": RtDetrConfig(), "small": SMALL},
    ),
)
