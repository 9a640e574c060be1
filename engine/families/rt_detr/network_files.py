"""Files of RT-DETR v4: the names of their tensors, and sizes from shapes."""

from __future__ import annotations

import re

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.rt_detr.backbone import backbone_config
from darkroom.engine.families.rt_detr.decoder import decoder_config
from darkroom.engine.families.rt_detr.encoder import NUM_HEADS, encoder_config
from darkroom.engine.families.rt_detr.network import RtDetrConfig
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.images.coco_classes import COCO_CLASSES
from darkroom.engine.layers.shapes import Shapes, expect

SIGNATURE = ("encoder.pan_blocks.1.cv4.conv.weight", "decoder.enc_score_head.weight", "backbone.stem.stem1.conv.weight")
NUM_STAGES, NUM_LEVELS = 4, 3
OWN_PARTS = ("backbone.", "encoder.", "decoder.")
LEFT_OUT = re.compile(
    r"\.num_batches_tracked$|\.num_points_scale$|^decoder\.(anchors|valid_mask|up|decoder\.up|decoder\.reg_scale)$"
)
"""Tensors that are computed here, are there twice, or that only training reads."""


def rt_detr_names(shapes: Shapes) -> Names | None:
    """Return the names of the network's weights in a file, None for a file of another network."""
    if not all(name in shapes for name in SIGNATURE):
        return None
    return {name: name for name in shapes if name.startswith(OWN_PARTS) and not LEFT_OUT.search(name)}


def rt_detr_config(shapes: Shapes) -> RtDetrConfig:
    """Return the configuration of a network with these weights.

    Raises LookupError for a missing tensor, `NotRecognised` for sizes that do not fit one another.
    """
    backbone, encoder = backbone_config(shapes, "backbone."), encoder_config(shapes, "encoder.")
    try:
        expect("stages of the image encoder", len(backbone.stages), NUM_STAGES)
        expect("levels", len(encoder.in_channels), NUM_LEVELS)
        decoder = decoder_config(shapes, "decoder.", encoder.hidden_size)
        expect("classes", decoder.num_classes, len(COCO_CLASSES))
    except ValueError as error:
        raise NotRecognised(f"RT-DETR v4 of other {error}") from error
    for size in (encoder.hidden_size, decoder.hidden_size):
        if size < NUM_HEADS or size % NUM_HEADS:
            raise NotRecognised(f"RT-DETR v4 of hidden size {size}, which is no multiple of {NUM_HEADS}")
    return RtDetrConfig(backbone, encoder, decoder)
