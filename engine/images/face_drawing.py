"""Faces' landmarks drawn over images: lines between them, dots, and filled parts.

`N` landmarks, `H W` pixels; images are uint8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

Points = NDArray[np.float32]  # [N, 2], x and y in pixels
Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]
GREEN: Color = (0, 255, 0)
FARTHEST_PX = 1 << 15  # of a landmark that is drawn: time grows with the length of a line


def color_of(text: str) -> Color:
    """Return the colour that a text names (`#00ff00`, `lime`), green for others."""
    try:
        return ImageColor.getrgb(text)[:3]
    except ValueError:
        return GREEN


def with_lines(
    image: Pixels,
    faces: Iterable[Points],
    edges: Iterable[tuple[int, int]],
    color: Color,
    line_px: int,
    dot_px: int,
) -> Pixels:
    """Return an image [H, W, 3] with lines between landmarks, and dots on all of them; those of 0 px are left out."""
    drawn = Image.fromarray(image)
    draw = ImageDraw.Draw(drawn)
    pairs = list(edges) if line_px else []
    for points in faces:
        places = _places(points)
        for first, second in pairs:
            if max(first, second) < len(places):
                draw.line((places[first], places[second]), fill=color, width=line_px)
        if dot_px == 1:
            draw.point(places, fill=color)
        elif dot_px > 1:
            radius = dot_px / 2
            for x, y in places:
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    return np.asarray(drawn)


def with_filled(image: Pixels, faces: Iterable[Points], rings: Sequence[Sequence[int]], color: Color | int) -> Pixels:
    """Return an image [H, W, 3] or mask [H, W] with the inside of closed lines of landmarks in a colour."""
    drawn = Image.fromarray(image)
    draw = ImageDraw.Draw(drawn)
    for points in faces:
        places = _places(points)
        for ring in rings:
            draw.polygon([places[index] for index in ring], fill=color)
    return np.asarray(drawn)


def _places(points: Points) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in points.clip(-FARTHEST_PX, FARTHEST_PX)]
