"""A composition that ComfyUI's page has saved: places of layers, their order, the canvas and its background.

It comes from strangers. What does not fit is passed over; numbers are brought into their ranges.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.engine.images.layers.blend_modes import BLEND_MODES
from darkroom.engine.images.layers.composite import Rgb, bytes_of
from darkroom.engine.images.layers.layer import MAX_SIDE_PX, Layer, Placement

VERSION = 1
WHITE: Rgb = (255, 255, 255)
FINGERPRINT_LETTERS = 16


@dataclass(frozen=True, slots=True)
class SavedComposition:
    """Canvas in pixels, the entry of each layer, their order, and a visible background with its opacity.

    `fingerprints` are those of the layers that it was saved for; None if it has none.
    """

    canvas_px: tuple[int, int]
    entries: Sequence[object]
    order: Sequence[int]
    background: tuple[Rgb, float] | None
    fingerprints: Sequence[str] | None

    def stack(self, layers: Sequence[Layer]) -> list[tuple[Layer, Placement]]:
        """Return the layers with their saved places, lowest first."""
        return [(layers[index], _placement(self.entries[index], layers[index])) for index in self.order]


def read_composition(found: object) -> SavedComposition | None:
    """Read what the page sends, JSON or its text; None if there is no composition in it."""
    state = _parsed(found)
    if state is None or state.get("version", VERSION) not in (None, VERSION):
        return None
    canvas, entries = state.get("canvas"), state.get("layers")
    if not isinstance(canvas, Mapping) or not isinstance(entries, list) or not entries:
        return None
    width, height = (round(_number(canvas, side, 0.0)) for side in ("w", "h"))
    if width <= 0 or height <= 0:
        return None
    inputs = state.get("inputs")
    is_listed = isinstance(inputs, list) and all(isinstance(entry, str) for entry in inputs)
    return SavedComposition(
        (width, height),
        entries,
        _order(state.get("order"), len(entries)),
        _background(state.get("background")),
        inputs if is_listed else None,
    )


def fingerprint_of(layer: Layer) -> str:
    """Return the fingerprint by which the page recognises a layer with its first place: ComfyUI's."""
    placement = layer.placement
    height, width = layer.image.shape[:2]
    digest = hashlib.sha256(repr((1, height, width, layer.channels)).encode())
    digest.update(np.ascontiguousarray(bytes_of(layer.image)).tobytes())
    if layer.alpha is not None:
        digest.update(np.ascontiguousarray(bytes_of(layer.alpha)).tobytes())
    placed = (
        *(placement.x, placement.y, placement.width, placement.height, placement.rotation, placement.opacity),
        *(placement.blend, placement.is_visible, placement.is_flipped_h, placement.is_flipped_v),
    )
    digest.update(repr(placed).encode())
    return digest.hexdigest()[:FINGERPRINT_LETTERS]


def first_placement(layer: Layer) -> Placement:
    """Return the place that a stack gives a layer, in the ranges of a saved one."""
    own = layer.placement
    given = {
        "opacity": own.opacity,
        "blend": own.blend,
        "visible": own.is_visible,
        "flipH": own.is_flipped_h,
        "flipV": own.is_flipped_v,
        "transform": {"x": own.x, "y": own.y, "w": own.width, "h": own.height, "rotation": own.rotation},
    }
    return _placement(given, layer)


def _parsed(found: object) -> Mapping[str, Any] | None:
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, Mapping) and found else None


def _placement(entry: object, layer: Layer) -> Placement:
    given = entry if isinstance(entry, Mapping) else {}
    transform = given.get("transform")
    place = transform if isinstance(transform, Mapping) else {}
    height, width = layer.image.shape[:2]
    blend = given.get("blend")
    return Placement(
        _within(_number(place, "x", 0.0), MAX_SIDE_PX),
        _within(_number(place, "y", 0.0), MAX_SIDE_PX),
        _side(_number(place, "w", width), width),
        _side(_number(place, "h", height), height),
        _number(place, "rotation", 0.0),
        min(max(_number(given, "opacity", 1.0), 0.0), 1.0),
        blend if isinstance(blend, str) and blend in BLEND_MODES else "normal",
        bool(given.get("visible", True)),
        bool(given.get("flipH", False)),
        bool(given.get("flipV", False)),
    )


def _number(source: Mapping[str, Any], key: str, default: float) -> float:
    value = source.get(key, default)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else float(default)


def _within(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)


def _side(value: float, natural: int) -> float:
    return float(natural) if value <= 0 else min(value, float(MAX_SIDE_PX))


def _order(found: object, count: int) -> list[int]:
    is_list = isinstance(found, list) and all(type(index) is int for index in found)
    return list(found) if is_list and sorted(found) == list(range(count)) else list(range(count))  # type: ignore[call-overload]


def _background(found: object) -> tuple[Rgb, float] | None:
    if not isinstance(found, Mapping) or not found.get("visible", True):
        return None
    opacity = min(max(_number(found, "opacity", 1.0), 0.0), 1.0)
    return (_color(found.get("color")), opacity) if opacity > 0 else None


def _color(found: object) -> Rgb:
    """Return the colour of `#RGB` or `#RRGGBB`, white for anything else."""
    digits = found.strip().removeprefix("#") if isinstance(found, str) and found.strip().startswith("#") else ""
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    try:
        red, green, blue = bytes.fromhex(digits) if " " not in digits else b""
    except ValueError:
        return WHITE
    return red, green, blue
