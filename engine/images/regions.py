"""Regions of a canvas with what is to be there: read from boxes or elements of a prompt, and written as both.

- A box is in pixels: `{"x", "y", "width", "height", "metadata"?: {"type", "text", "desc", "palette"}}`.
- An element, as Ideogram's prompts have it, is in thousandths of the canvas:
  `{"bbox": [top, left, bottom, right], "type": "obj" or "text", "desc", "text"?, "color_palette"?}`.
- A region is in shares of the canvas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from darkroom.engine.images.boxes import Box, checked_box

GRID = 1000  # units of an element along a side
MAX_BOXES = 1000
MAX_ELEMENT_COLORS = 5
EXPECTED = "bounding boxes (x, y, width, height), elements (with a bbox), or JSON of either"


@dataclass(frozen=True, slots=True)
class Region:
    """A region: left, top, width and height in shares of the canvas, and what is to be there."""

    x: float
    y: float
    width: float
    height: float
    is_text: bool
    text: str
    description: str
    palette: Sequence[str]

    def element(self) -> dict[str, object]:
        """Return the region as an element of a prompt."""
        sides = (self.y, self.x, self.y + self.height, self.x + self.width)
        top, left, bottom, right = (max(0, min(GRID, round(side * GRID))) for side in sides)
        corners = [min(top, bottom), min(left, right), max(top, bottom), max(left, right)]
        element: dict[str, object] = {"type": "text" if self.is_text else "obj", "bbox": corners}
        if self.is_text:
            element["text"] = self.text
        element["desc"] = self.description
        if self.palette:
            element["color_palette"] = [color.upper() for color in self.palette[:MAX_ELEMENT_COLORS]]
        return element

    def box(self, width: int, height: int) -> dict[str, int]:
        """Return the region as a bounding box on a canvas of that size."""
        x, y = min(self.x, self.x + self.width), min(self.y, self.y + self.height)
        return {
            "x": round(x * width),
            "y": round(y * height),
            "width": round(abs(self.width) * width),
            "height": round(abs(self.height) * height),
        }


def regions_of(boxes: object, width: int, height: int) -> list[Region]:
    """Return the regions of boxes on a canvas of that size. Entries that are none are passed over."""
    found = boxes if isinstance(boxes, list) else []
    return [_region(box, width or 1, height or 1) for box in found[:MAX_BOXES] if isinstance(box, Mapping)]


def boxes_of(found: object, width: int, height: int) -> list[Box]:
    """Return boxes in pixels of what a link brings: boxes, lists of them, elements, or JSON of any; none for None.

    Raises ValueError for anything else, for elements without a canvas, and for more than 1000.
    """
    if isinstance(found, str):
        found = _read_json(found)
    if found is None or found in ({}, []):
        return []
    items = found if isinstance(found, list) else [found]
    if items and isinstance(items[0], list):
        items = items[0]
    if len(items) > MAX_BOXES:
        raise ValueError(f"bboxes: too many; got {len(items)}, expected at most {MAX_BOXES}")
    return [_box(item, width, height) for item in items]


def _read_json(text: str) -> object:
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        raise ValueError(f"bboxes: no JSON; got {text.strip()[:60]!r}, expected {EXPECTED}") from None


def _box(item: object, width: int, height: int) -> Box:
    if not isinstance(item, Mapping) or "bbox" not in item:
        box = checked_box(item)
        metadata = box.get("metadata")
        sides = {side: box[side] for side in ("x", "y", "width", "height")}
        return {**sides, "metadata": metadata} if isinstance(metadata, Mapping) else sides
    if width <= 0 or height <= 0:
        raise ValueError("bboxes: elements without a canvas; got a width or height of 0, expected its size in pixels")
    try:
        top, left, bottom, right = (float(side) / GRID for side in item["bbox"])
        corner = {"x": round(min(left, right) * width), "y": round(min(top, bottom) * height)}
        size = {"width": round(abs(right - left) * width), "height": round(abs(bottom - top) * height)}
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"bboxes: no bbox; got {str(item['bbox'])[:60]}, expected [top, left, bottom, right]"
        ) from None
    is_text = item.get("type") == "text"
    metadata = {
        "type": "text" if is_text else "obj",
        "text": item.get("text", "") if is_text else "",
        "desc": item.get("desc", ""),
        "palette": item.get("color_palette", []) or [],
    }
    return {**corner, **size, "metadata": metadata}


def _region(box: Mapping[str, object], width: int, height: int) -> Region:
    found = box.get("metadata")
    metadata: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    sides = checked_box({"x": 0, "y": 0, "width": 0, "height": 0, **box})
    return Region(
        sides["x"] / width,
        sides["y"] / height,
        sides["width"] / width,
        sides["height"] / height,
        metadata.get("type") == "text",
        _text(metadata.get("text")),
        _text(metadata.get("desc")),
        _colors(metadata.get("palette")),
    )


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _colors(found: object) -> list[str]:
    listed = list(found.values()) if isinstance(found, Mapping) else found
    return [color for color in listed if isinstance(color, str) and color] if isinstance(listed, list) else []
