"""BOUNDING_BOX: boxes in pixels, `{"x", "y", "width", "height"}`, one, a list of them, or a list for each image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

SIDES = ("x", "y", "width", "height")
LARGEST_PX = 1 << 20

Box = Mapping[str, Any]  # further keys: `label`, `score`, `metadata`
Corners = tuple[int, int, int, int]  # left, top, right, bottom, in whole pixels


def boxes_by_image(found: object) -> list[list[Box]]:
    """Return the boxes of each image; a single box or a list of them is a list for every image.

    Raises ValueError for what is no box.
    """
    if isinstance(found, Mapping):
        return [[checked_box(found)]]
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ValueError(f"bboxes: no bounding boxes; got {type(found).__name__}, expected x, y, width and height")
    if found and isinstance(found[0], Mapping):
        return [[checked_box(box) for box in found]]
    return [[checked_box(box) for box in boxes or ()] for boxes in found]


def checked_box(found: object) -> Box:
    """Return a box. Raises ValueError for one without its four numbers."""
    if isinstance(found, Mapping) and all(_is_side(found.get(side)) for side in SIDES):
        return found
    raise ValueError(f"bboxes: no bounding box; got {str(found)[:60]}, expected numbers x, y, width and height")


def corners_of(box: Box) -> Corners:
    """Return the corners of a box in whole pixels, towards zero."""
    left, top = box["x"], box["y"]
    return int(left), int(top), int(left + box["width"]), int(top + box["height"])


def _is_side(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and abs(value) <= LARGEST_PX  # type: ignore[arg-type]
