"""`comfy_extras.nodes_images`: vector pictures as values."""

from __future__ import annotations

from darkroom.engine.images.svg import Svg as SVG

__all__ = ["SVG"]
