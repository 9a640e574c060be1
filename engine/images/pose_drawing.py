"""Poses as images in DWPose's colours, as ControlNets of poses were trained on.

A canvas is uint8 `[H, W, 3]` and is drawn on. Points are x, y and score.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.images.poses import Pose

Canvas = NDArray[np.uint8]
Points = NDArray[np.float32]
Color = tuple[int, int, int]

LIMBS = ((1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13))
HEAD = ((1, 0), (0, 14), (14, 16), (0, 15), (15, 17))
HEAD_POINTS, NECK = (0, 14, 15, 16, 17), 1
FINGERS = tuple((0 if joint % 4 == 1 else joint - 1, joint) for joint in range(1, 21))
COLORS: tuple[Color, ...] = (
    (255, 0, 0), (255, 85, 0), (255, 170, 0), (255, 255, 0), (170, 255, 0), (85, 255, 0), (0, 255, 0), (0, 255, 85),
    (0, 255, 170), (0, 255, 255), (0, 170, 255), (0, 85, 255), (0, 0, 255), (85, 0, 255), (170, 0, 255), (255, 0, 255),
    (255, 0, 170), (255, 0, 85),
)  # fmt: skip
WHITE, BLUE = (255, 255, 255), (0, 0, 255)
NUM_LANDMARKS = 68  # of the face; the eyes behind them are the body's
POINT_PX, FINGER_PX = 4, 1.5  # radii
SHORTEST_PX = 1  # of limbs


@dataclass(frozen=True, slots=True)
class PoseStyle:
    """Parts that are drawn, half the width of limbs and the radius of the face's points in pixels, least score."""

    body: bool = True
    head: bool = True
    feet: bool = False
    face: bool = True
    hands: bool = True
    stick_px: int = 4
    face_px: int = 3
    least_score: float = 0.3


def draw_pose(canvas: Canvas, pose: Pose, style: PoseStyle) -> None:
    """Draw a person on a canvas: limbs, then points, hands and the face above one another."""
    if style.body or style.head:
        _draw_limbs(canvas, pose.body, style)
        for index, point in enumerate(pose.body):
            is_wanted = style.head if index in HEAD_POINTS else style.body or index == NECK
            if is_wanted:
                _draw_point(canvas, point, POINT_PX, COLORS[index], style)
    if style.feet:
        for index, point in enumerate(pose.feet):
            _draw_point(canvas, point, POINT_PX, COLORS[index], style)
    if style.hands:
        for hand in (pose.right_hand, pose.left_hand):
            _draw_hand(canvas, hand, style)
    if style.face:
        for point in pose.face[:NUM_LANDMARKS]:
            _draw_point(canvas, point, style.face_px, WHITE, style, is_inside=True)


def _draw_limbs(canvas: Canvas, body: Points, style: PoseStyle) -> None:
    edges = [*(LIMBS if style.body else ()), *(HEAD if style.head else ())]
    first = 0 if style.body else len(LIMBS)
    for index, (start, end) in enumerate(edges, start=first):
        (x, y), (to_x, to_y) = (body[point, :2].astype(float) for point in (start, end))
        length = math.hypot(x - to_x, y - to_y)
        if min(body[start, 2], body[end, 2]) < style.least_score or length < SHORTEST_PX:
            continue
        degrees = int(math.degrees(math.atan2(y - to_y, x - to_x)))
        middle = int((x + to_x) / 2), int((y + to_y) / 2)
        fill_polygon(canvas, ellipse(middle, (int(length / 2), style.stick_px), degrees), COLORS[index % len(COLORS)])


def _draw_hand(canvas: Canvas, hand: Points, style: PoseStyle) -> None:
    for index, (start, end) in enumerate(FINGERS):
        is_certain = min(hand[start, 2], hand[end, 2]) >= style.least_score
        if is_certain and all(_is_inside(canvas, hand[point], least=1) for point in (start, end)):
            red, green, blue = (int(value * 255) for value in colorsys.hsv_to_rgb(index / len(FINGERS), 1.0, 1.0))
            for place in line(_pixel(hand[start]), _pixel(hand[end])):
                fill_circle(canvas, place, FINGER_PX, (red, green, blue))
    for point in hand:
        _draw_point(canvas, point, POINT_PX, BLUE, style, is_inside=True)


def _draw_point(
    canvas: Canvas, point: Points, radius: float, color: Color, style: PoseStyle, *, is_inside: bool = False
) -> None:
    """Draw a point that is certain and on the canvas; not in its first row or column where `is_inside`."""
    if point[2] >= style.least_score and _is_inside(canvas, point, least=int(is_inside)):
        fill_circle(canvas, _pixel(point), radius, color)


def _pixel(point: Points) -> tuple[int, int]:
    return int(point[0]), int(point[1])


def _is_inside(canvas: Canvas, point: Points, *, least: int) -> bool:
    x, y = _pixel(point)
    height, width = canvas.shape[:2]
    return bool(least <= x < width and least <= y < height)


def fill_circle(canvas: Canvas, middle: tuple[int, int], radius: float, color: Color) -> None:
    """Fill the pixels whose distance from the middle (x, y) is at most the radius."""
    x, y = middle
    reach = math.ceil(radius)
    top, left = max(0, y - reach), max(0, x - reach)
    part = canvas[top : max(0, y + reach + 1), left : max(0, x + reach + 1)]
    rows, columns = np.ogrid[: part.shape[0], : part.shape[1]]
    part[(columns + left - x) ** 2 + (rows + top - y) ** 2 <= radius**2] = color


def line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the pixels (x, y) of a line by Bresenham's algorithm (1965)."""
    (x, y), (to_x, to_y) = start, end
    across, down = abs(to_x - x), abs(to_y - y)
    step_x, step_y = (1 if x < to_x else -1), (1 if y < to_y else -1)
    error, pixels = across - down, [(x, y)]
    while (x, y) != (to_x, to_y):
        doubled = 2 * error
        if doubled > -down:
            error, x = error - down, x + step_x
        if doubled < across:
            error, y = error + across, y + step_y
        pixels.append((x, y))
    return pixels


def ellipse(middle: tuple[int, int], radii: tuple[int, int], degrees: int) -> list[tuple[int, int]]:
    """Return corners (x, y) of an ellipse that is turned by `degrees`, one for each degree around it."""
    turn = math.radians(degrees % 360)
    corners: list[tuple[int, int]] = []
    for step in range(361):
        along = (radii[0] + 0.5) * math.cos(math.radians(step))
        across = (radii[1] + 0.5) * math.sin(math.radians(step))
        x = round(middle[0] + along * math.cos(turn) - across * math.sin(turn))
        y = round(middle[1] + along * math.sin(turn) + across * math.cos(turn))
        if not corners or (x, y) != corners[-1]:
            corners.append((x, y))
    return corners


def fill_polygon(canvas: Canvas, corners: list[tuple[int, int]], color: Color) -> None:
    """Fill the pixels within a polygon, row by row: those right of an odd number of its sides."""
    height, width = canvas.shape[:2]
    crossings: dict[int, list[float]] = {}
    for (x, y), (to_x, to_y) in zip(corners, [*corners[1:], corners[0]], strict=True):
        if y > to_y:
            x, y, to_x, to_y = to_x, to_y, x, y
        for row in range(max(y, 0), min(to_y, height)):
            crossings.setdefault(row, []).append(x + (row - y) * (to_x - x) / (to_y - y))
    for row, places in crossings.items():
        places.sort()
        for left, right in zip(places[::2], places[1::2], strict=True):
            canvas[row, max(math.ceil(left), 0) : max(min(math.ceil(right), width), 0)] = color
