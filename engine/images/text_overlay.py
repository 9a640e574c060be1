"""Text drawn over images: wrapped to their width, shrunk to their height, with an outline.

`H W` are pixels. The font is the one that Pillow brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageColor, ImageDraw, ImageFont

Rgba = tuple[int, ...]

MARGIN = 0.01  # of the shorter side
LINE_HEIGHT = 1.2  # of the font's size
OUTLINE = 0.04  # of the font's size
MIN_FONT = 0.02  # of the height
MIN_FONT_PX = 10
SHRINK = 0.9
BLACK: Rgba = (0, 0, 0, 255)
CLEAR: Rgba = (0, 0, 0, 0)
ANCHORS = {"left": "la", "center": "ma", "right": "ra"}


@dataclass(frozen=True, slots=True)
class TextStyle:
    """Look of a text: size as a part of the image's height, colour, position (`top`, `bottom`), alignment, outline."""

    size: float
    color: Rgba
    position: str
    align: str
    outline: bool


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines of text in one font, and their box in pixels when they are drawn at (0, 0)."""

    text: str
    font: ImageFont.FreeTypeFont
    spacing_px: int
    stroke_px: int
    box: tuple[float, float, float, float]

    @property
    def height_px(self) -> float:
        return self.box[3] - self.box[1]


def color_of(name: str) -> Rgba:
    """Return the red, green, blue and alpha, each 0..255, of a colour by name or as `#rrggbb`.

    Raises ValueError for what is no colour.
    """
    found = ImageColor.getrgb(name)
    return found if len(found) == 4 else (*found, 255)


def with_text(images: torch.Tensor, text: str, style: TextStyle, check: Callable[[], None]) -> torch.Tensor:
    """Draw a text over images [B, H, W, 3] of 0..1. `check` is called between steps, and raises to end them."""
    height, width = images.shape[1:3]
    layer = torch.from_numpy(_drawn(width, height, text, style, check).astype(np.float32) / 255.0)
    drawn = layer.to(images.device, images.dtype)  # [H, W, 4]
    color, alpha = drawn[..., :3], drawn[..., 3:]
    return images * (1.0 - alpha) + color * alpha


def _drawn(width: int, height: int, text: str, style: TextStyle, check: Callable[[], None]) -> np.ndarray:
    """Return a transparent image [H, W, 4], uint8, with the text."""
    layer = Image.new("RGBA", (width, height), CLEAR)
    draw = ImageDraw.Draw(layer)
    margin = round(MARGIN * min(width, height))
    block = _fitting_block(draw, text, style, width - 2 * margin, height - 2 * margin, height, check)
    x = {"left": float(margin), "center": width / 2, "right": float(width - margin)}[style.align]
    y = height - margin - block.box[3] if style.position == "bottom" else margin - block.box[1]
    draw.multiline_text(
        (x, y),
        block.text,
        font=block.font,
        fill=style.color,
        anchor=ANCHORS[style.align],
        align=style.align,
        spacing=block.spacing_px,
        stroke_width=block.stroke_px,
        stroke_fill=BLACK if style.outline else CLEAR,
    )
    return np.array(layer)


def _fitting_block(
    draw: ImageDraw.ImageDraw,
    text: str,
    style: TextStyle,
    width: int,
    height: int,
    image_height: int,
    check: Callable[[], None],
) -> _Block:
    """Return the text in the largest font, from the wanted size down, in which it is no higher than `height`."""
    size = max(1, round(style.size * image_height))
    smallest = min(size, max(MIN_FONT_PX, round(MIN_FONT * image_height)))
    while True:
        check()
        block = _block(draw, text, size, max(1, width), style.outline)
        if block.height_px <= max(1, height) or size <= smallest:
            return block
        size = max(smallest, int(size * SHRINK))


def _block(draw: ImageDraw.ImageDraw, text: str, size: int, width: int, has_outline: bool) -> _Block:
    font = ImageFont.load_default(size=size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow is built with FreeType"
    stroke = max(1, round(size * OUTLINE)) if has_outline else 0
    lines = "\n".join(line for raw in text.split("\n") for line in _wrapped(raw.split(), font, width))
    one = draw.textbbox((0, 0), "Ay", font=font, stroke_width=stroke)
    two = draw.multiline_textbbox((0, 0), "Ay\nAy", font=font, spacing=0, stroke_width=stroke)
    advance = (two[3] - two[1]) - (one[3] - one[1])
    spacing = round(size * LINE_HEIGHT - advance)
    box = draw.multiline_textbbox((0, 0), lines, font=font, spacing=spacing, stroke_width=stroke)
    return _Block(lines, font, spacing, stroke, box)


def _wrapped(words: list[str], font: ImageFont.FreeTypeFont, width: int) -> Iterator[str]:
    """Yield lines of at most `width` pixels; a longer word is cut. Without words the line is empty."""
    line = ""
    for word in words:
        *full, rest = _cut(word, font, width)
        if full and line:
            yield line
            line = ""
        yield from full
        longer = f"{line} {rest}" if line else rest
        if line and font.getlength(longer) > width:
            yield line
            longer = rest
        line = longer
    if line or not words:
        yield line


def _cut(word: str, font: ImageFont.FreeTypeFont, width: int) -> Iterator[str]:
    """Yield the parts of a word, as long as fits each, of a character at least; the last is what is left.

    Each part is measured a few times, and not the whole rest, so that the time grows with the word alone.
    """
    start = 0
    while True:
        shortest, longest = 1, 2  # of the next part: `shortest` is taken, `longest` is tried
        while start + longest <= len(word) and font.getlength(word[start : start + longest]) <= width:
            shortest, longest = longest, longest * 2
        if start + longest > len(word):
            longest = len(word) - start + 1
            if font.getlength(word[start:]) <= width or start + 1 == len(word):
                yield word[start:]
                return
        while longest - shortest > 1:
            middle = (shortest + longest) // 2
            if font.getlength(word[start : start + middle]) <= width:
                shortest = middle
            else:
                longest = middle
        yield word[start : start + shortest]
        start += shortest
