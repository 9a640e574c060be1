"""A plot of numbers as a line, drawn with Pillow's own font."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw

from darkroom.engine.images.pixels import from_pillow

WIDTH, HEIGHT, MARGIN = 800, 480, 40  # px; the margin is left of the area and below it


def line_plot(values: Sequence[float], *, x_label: str, y_label: str) -> torch.Tensor:
    """Return an image [H, W, 3] of 0..1 with the values from left to right, between the least and the largest.

    Equal values are a line at the bottom. Raises ValueError without values.
    """
    if not values:
        raise ValueError("values: nothing to draw; got none, expected at least one")
    low, high = min(values), max(values)
    span = high - low or 1.0
    image = Image.new("RGB", (WIDTH + MARGIN, HEIGHT + MARGIN), "white")
    draw = ImageDraw.Draw(image)
    points = [
        (MARGIN + int(step / len(values) * WIDTH), HEIGHT - int((value - low) / span * HEIGHT))
        for step, value in enumerate(values)
    ]
    draw.line(points, fill="blue", width=2)
    draw.line([(MARGIN, 0), (MARGIN, HEIGHT)], fill="black", width=2)
    draw.line([(MARGIN, HEIGHT), (WIDTH + MARGIN, HEIGHT)], fill="black", width=2)
    draw.text((5, HEIGHT // 2), y_label, fill="black")
    draw.text((WIDTH // 2, HEIGHT + 10), x_label, fill="black")
    draw.text((MARGIN - 30, 0), f"{high:.2f}", fill="black")
    draw.text((MARGIN - 30, HEIGHT - 10), f"{low:.2f}", fill="black")
    return from_pillow(image)
