"""Points of tracks drawn on the frames of a video, with fading lines to where they were before.

`F` frames, `N` points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

COLOURS = ((102, 153, 255), (0, 255, 255), (255, 255, 0), (255, 102, 204), (0, 255, 0))  # of points, in turn
OPAQUE = 255

Point = tuple[int, int]


def num_points(path: torch.Tensor, earlier: int) -> int:
    """Return an upper bound of the points of all lines of tracks [F, N, 2] that go back `earlier` frames."""
    steps = (path[1:] - path[:-1]).double().norm(dim=-1).sum(dim=1) + path.shape[1]  # of all, from frame to frame
    return int(steps.sum()) * min(earlier, path.shape[0])


def drawn_on(
    frames: torch.Tensor, path: torch.Tensor, visible: torch.Tensor, earlier: int, radius: int, opacity: float,
    line_width: int,
) -> torch.Tensor:  # fmt: skip
    """Return frames [F, H, W, 3] of 0..1, in levels of 255, with the points [F, N, 2] that are visible [F, N].

    Lines go back `earlier` frames; they fade and get thinner from `line_width` on.
    """
    points, shown = path.cpu().tolist(), visible.cpu().tolist()
    levels = (frames * OPAQUE).byte().cpu().numpy()
    out = np.empty(levels.shape[:3] + (3,), dtype=np.uint8)
    for index, frame in enumerate(levels):
        numbers = [number for number, is_shown in enumerate(shown[index]) if is_shown]
        circles = _overlay(frame)
        pen = ImageDraw.Draw(circles)
        for number in numbers:
            x, y = points[index][number]
            colour = (*COLOURS[number % len(COLOURS)], int(OPAQUE * opacity))
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        mixed = _over(frame.astype(np.float32), circles)
        lines = _overlay(frame)
        pen = ImageDraw.Draw(lines, "RGBA")
        for number in numbers:
            past = [tuple(points[at][number]) for at in range(index, max(index - earlier, 0) - 1, -1)]
            _draw_line(pen, past, COLOURS[number % len(COLOURS)], opacity, line_width)
        out[index] = _over(mixed, lines).astype(np.uint8)
    return torch.from_numpy(out).float() / OPAQUE


def _overlay(frame: NDArray[np.uint8]) -> Image.Image:
    return Image.new("RGBA", (frame.shape[1], frame.shape[0]), (0, 0, 0, 0))


def _over(frame: NDArray[np.floating], overlay: Image.Image) -> NDArray[np.floating]:
    """Return a frame [H, W, 3] with an image over it."""
    pixels = np.asarray(overlay)
    alpha = pixels[:, :, 3:4] / OPAQUE
    mixed: NDArray[np.floating] = pixels[:, :, :3] * alpha + frame * (1 - alpha)
    return mixed


def _draw_line(
    pen: ImageDraw.ImageDraw, past: Sequence[Point], colour: tuple[int, int, int], opacity: float, line_width: int
) -> None:
    """Draw a line from the newest point of `past` to the oldest."""
    total = sum(math.dist(one, other) for one, other in zip(past, past[1:], strict=False))
    if total == 0:
        return
    for (x, y), gone in _points_along(past):
        left = 1 - gone / total
        fill = (*colour, int(OPAQUE * left * opacity))
        pen.line([(x, y), (x + 1, y)], fill=fill, width=max(int(line_width * left), 1))


def _points_along(past: Sequence[Point]) -> Iterator[tuple[Point, float]]:
    """Yield the points of a line, a pixel apart, and how far each is from its beginning."""
    before = 0.0
    for (x, y), (to_x, to_y) in zip(past, past[1:], strict=False):
        length = math.dist((x, y), (to_x, to_y))
        steps = max(int(length), 1)
        for step in range(steps):
            place = (int(x + (to_x - x) * step / steps), int(y + (to_y - y) * step / steps))
            yield place, before + step / steps * length
        before += length
