"""Example image of 64x64 pixels, a white disc on black, for use as an image, a map or a mask."""

from __future__ import annotations

from typing import Final

EXAMPLE_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAeElEQVR42sXQsQ2DUBRD0YNBCl0YgWxCNsqIfxRGoKRAkAIloaBK"
    "gyvr+tnF42rdZwSv2w6qbSuE0BMaOkJLS+hoDgdhoKKmoCr5zEcFgwP5mkB/Gv1nVhhPow3Kj9QYeAqFjTCyEiYWwsxMWJgIK+Ne"
    "NzwOP7xEb5q2F+9MM1J5AAAAAElFTkSuQmCC"
)
