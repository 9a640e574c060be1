"""Bar and line charts as SVG text, for the documentation: on a white ground, so that dark pages show them, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 760
LEFT: Final = 210  # for the names of bars
RIGHT: Final = 90
TOP: Final = 74
BAR: Final = 17
GAP: Final = 12
PLOT_HEIGHT: Final = 240
MARK_WIDTH: Final = 50
COLOURS: Final = ("#b53a12", "#1d5f9c", "#2c6e2f", "#7a3c95")
INK, QUIET, LINE = "#221d1a", "#5f5751", "#d9d2cb"
STEPS: Final = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Bars:
    """A group of bars, one for each series of the chart; None: not measured."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A series of points, by growing x."""

    name: str
    points: Sequence[tuple[float, float]]


def bar_chart(title: str, about: str, series: Sequence[str], groups: Sequence[Bars], unit: str) -> str:
    """Return a chart of horizontal bars with their values; `series` are the names of each group's bars."""
    most = max(value for group in groups for value in group.values if value is not None)
    room, y = WIDTH - LEFT - RIGHT, TOP
    parts: list[str] = []
    for group in groups:
        shown = [(index, value) for index, value in enumerate(group.values) if value is not None]
        middle = y + BAR * len(shown) / 2 + 5
        parts.append(_text(LEFT - 10, middle, group.name, anchor="end"))
        for index, value in shown:
            length = max(1.0, room * value / most)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{COLOURS[index]}"/>')
            parts.append(_text(LEFT + length + 6, y + BAR - 5, f"{shown_number(value)} {unit}".strip(), size=12))
            y += BAR
        y += GAP
    return _page(title, about, series if len(series) > 1 else (), parts, y + 4)


def line_chart(
    title: str, about: str, lines: Sequence[Line], x_name: str, y_unit: str, *, is_logarithmic: bool = True
) -> str:
    """Return a chart of lines from 0 up, over a logarithmic or a plain x. Marks that would overlap are left out."""
    xs = sorted({x for line in lines for x, _ in line.points})
    top = ceiling(max(y for line in lines for _, y in line.points))
    left, room = 70, WIDTH - 70 - 30

    def at(x: float, y: float) -> tuple[float, float]:
        share = math.log(x / xs[0]) / math.log(xs[-1] / xs[0]) if is_logarithmic else (x - xs[0]) / (xs[-1] - xs[0])
        return left + room * share, TOP + PLOT_HEIGHT * (1 - y / top)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + PLOT_HEIGHT * (1 - share)
        parts.append(f'<line x1="{left}" x2="{left + room}" y1="{y:.1f}" y2="{y:.1f}" stroke="{LINE}"/>')
        parts.append(_text(left - 8, y + 4, f"{shown_number(top * share)} {y_unit}", anchor="end", size=12))
    marked_to = -math.inf
    for x in xs:
        if (place := at(x, 0)[0]) >= marked_to + MARK_WIDTH:
            parts.append(_text(place, TOP + PLOT_HEIGHT + 20, f"{x:,.0f}", anchor="middle", size=12))
            marked_to = place
    parts.append(_text(left + room / 2, TOP + PLOT_HEIGHT + 42, x_name, anchor="middle", size=12))
    for index, line in enumerate(lines):
        places = [at(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[index]}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{COLOURS[index]}"/>' for x, y in places]
    return _page(title, about, [line.name for line in lines], parts, TOP + PLOT_HEIGHT + 58)


def ceiling(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 … that is not below a positive value."""
    power = math.pow(10, math.floor(math.log10(value)))
    return next(step * power for step in STEPS if step * power >= value)


def shown_number(value: float) -> str:
    """Return a number with three significant digits, whole ones from 100 on.

    >>> shown_number(4.714), shown_number(0.252), shown_number(1200.4), shown_number(2.0)
    ('4.71', '0.252', '1,200', '2')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _page(title: str, about: str, names: Sequence[str], parts: Sequence[str], height: float) -> str:
    legend, x = [], 20
    for index, name in enumerate(names):
        legend.append(f'<rect x="{x}" y="50" width="12" height="12" fill="{COLOURS[index]}"/>')
        legend.append(_text(x + 18, 60, name, size=13))
        x += 40 + 8 * len(name)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" font-family="system-ui, sans-serif" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title)}. {escape(about)}</title>',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
            f'<text x="20" y="24" font-size="16" font-weight="600" fill="{INK}">{escape(title)}</text>',
            f'<text x="20" y="42" font-size="12" fill="{QUIET}">{escape(about)}</text>',
            *legend,
            *parts,
            "</svg>\n",
        )
    )


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 13) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}"'
    return f'<text {place} text-anchor="{anchor}" fill="{INK}">{escape(words)}</text>'
