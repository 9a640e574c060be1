"""`comfy_extras.nodes_images`: vector images as values."""

from __future__ import annotations

from darkroom.engine.images.svg import Svg as SVG

__all__ = ["SVG"]
