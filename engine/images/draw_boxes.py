"""Boxes of detected objects drawn over an image, in a colour for each class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import ImageDraw, ImageFont

from darkroom.engine.images.boxes import Box
from darkroom.engine.images.coco_classes import COCO_CLASSES
from darkroom.engine.images.pixels import from_pillow, to_pillow

COLORS = (
    (255, 0, 0), (0, 200, 0), (0, 0, 255), (255, 165, 0), (128, 0, 128), (0, 255, 255), (255, 20, 147), (100, 149, 237),
)  # fmt: skip
LINE_PX, LABEL_INSET_PX = 3, 2


def with_boxes(image: torch.Tensor, boxes: Sequence[Box]) -> torch.Tensor:
    """Return an image [H, W, C], 0..1, with boxes over it; the surest is drawn last. Other labels are not written."""
    drawn = to_pillow(image)
    draw, font = ImageDraw.Draw(drawn), ImageFont.load_default()
    for box in sorted(boxes, key=_score):
        left, top = float(box["x"]), float(box["y"])
        right, bottom = left + box["width"], top + box["height"]
        label = box.get("label")
        index = COCO_CLASSES.index(label) if label in COCO_CLASSES else 0
        color = COLORS[index % len(COLORS)]
        xs, ys = sorted((left, right)), sorted((top, bottom))
        draw.rectangle((xs[0], ys[0], xs[1], ys[1]), outline=color, width=LINE_PX)
        if label in COCO_CLASSES:
            corner = (left + LABEL_INSET_PX, top + LABEL_INSET_PX)
            draw.text(corner, f"{label} {_score(box):.2f}", fill=color, font=font)
    return from_pillow(drawn)


def _score(box: Box) -> float:
    """Return how sure a detector is of a box; 1 of a box that was not detected."""
    score = box.get("score", 1.0)
    return float(score) if isinstance(score, int | float) else 1.0
