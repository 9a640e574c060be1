"""`comfy_extras.nodes_images`: vector pictures as values."""

from __future__ import annotations

from engine.values.svg import Svg as SVG

__all__ = ["SVG"]
