"""RTDETR_detect: boxes of objects of known classes in images. IMAGE is float32 `[B, H, W, C]` of 0..1."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.rt_detr.network import IMAGE_PX, Detections, RtDetr
from darkroom.engine.images.boxes import Box
from darkroom.engine.images.coco_classes import COCO_CLASSES
from darkroom.engine.images.pixels import colours_of, resize
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.model import Model
from darkroom.engine.models.vision_model import VisionModel, vision_model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.boxes import BoundingBox
from darkroom.engine.nodes.markers import Labelled, Out, Streams
from darkroom.engine.nodes.widgets import Combo, Float, Int

FAMILY = "rt_detr"
EVERY_CLASS = "all"
LEVEL_CELL_PX = 4  # of the finest level of the image encoder
COPIES = 4  # of all that a block of that level joins, while it does
VALUE_BYTES = 4
"""Bytes of a value of the network, which computes in float32."""


@node("RTDETR_detect", display_name="Run Real-Time Detection (RT-DETR)", category="image/detection",
      python_module="comfy_extras.nodes_rtdetr", facts=NodeFacts(items="alone", reads_images_with=FAMILY),
      search_aliases=["bbox", "bounding box", "object detection", "coco"])  # fmt: skip
def rtdetr_detect(
    context: NodeContext,
    *,
    model: Annotated[Model, Labelled("MODEL", "model")],
    image: Annotated[torch.Tensor | FrameStream, Labelled("IMAGE", "image"), Streams()],
    threshold: Annotated[float, Float(extra={"display_name": "threshold"})] = 0.5,
    class_name: Annotated[str, Combo((EVERY_CLASS, *COCO_CLASSES))] = EVERY_CLASS,
    max_detections: Annotated[int, Int(extra={"display_name": "max_detections"})] = 100,
) -> Annotated[BoundingBox, Out("bboxes")]:
    """Find objects whose scores are above `threshold`, the surest of each image first.

    Raises ValueError for a model of another family.
    """
    detecting = vision_model(model, FAMILY)
    boxes: list[list[Box]] = []
    for frame in image:
        context.cancel.check()
        found = _boxes_in(detecting, colours_of(frame, "image"), threshold)
        wanted = [box for box in found if class_name in (EVERY_CLASS, box["label"])]
        boxes.append(wanted[:max_detections])
        context.report_progress(len(boxes), image.shape[0])
    return boxes


def _boxes_in(model: VisionModel, frame: torch.Tensor, threshold: float) -> list[Box]:
    """Return the boxes in pixels of what the network finds in an image [H, W, 3]."""
    height, width = frame.shape[:2]
    pixels = resize(frame.movedim(-1, 0)[None], IMAGE_PX, IMAGE_PX, "bilinear")
    with torch.no_grad(), model.in_use(working_bytes=_working_bytes(model.model.diffusion_model)) as holder:
        found: Detections = holder.diffusion_model(pixels.to(model.load_device, holder.compute_dtype))
    scores = found.scores[0]
    is_kept = scores > threshold
    sides = torch.tensor([width, height, width, height], dtype=torch.float32)
    corners = found.boxes[0][is_kept].cpu().float() * sides
    return [
        {
            "x": float(left),
            "y": float(top),
            "width": float(right - left),
            "height": float(bottom - top),
            "label": COCO_CLASSES[label],
            "score": score,
        }
        for (left, top, right, bottom), label, score in zip(
            corners, found.labels[0][is_kept].tolist(), scores[is_kept].tolist(), strict=True
        )
    ]


def _working_bytes(network: RtDetr) -> int:
    """Return the bytes that an image takes: those of the finest level, whose block joins all of its layers."""
    stage = network.config.backbone.stages[0]
    joined = stage.in_channels + stage.num_layers * stage.mid_channels
    return COPIES * joined * (IMAGE_PX // LEVEL_CELL_PX) ** 2 * VALUE_BYTES


NODES = (rtdetr_detect,)
