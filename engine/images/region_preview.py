"""Regions drawn over a dimmed image, with their numbers, colours and descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

from darkroom.engine.images.pixels import from_pillow, to_pillow
from darkroom.engine.images.regions import Region

LONGEST_SIDE_PX = 1024
BRIGHTNESS = 0.25
MIDDLE_GREY = 128
WITHOUT_COLOR, BAD_COLOR = (140, 140, 140), (255, 255, 255)
MAX_SWATCHES = 5
LIGHT, READABLE = 140, 130  # luminance, 0..255
LONGEST_TEXT = 5000  # letters of a description that are drawn
LONGEST_WORD = 200

Rgb = tuple[int, int, int]
Rgba = tuple[int, int, int, int]


def region_preview(regions: Sequence[Region], width: int, height: int, image: torch.Tensor | None) -> torch.Tensor:
    """Return regions over an image [H, W, C], or over a plain one of that size: [1, h, w, 3], at most 1024 px long."""
    ground = _ground(width, height, image)
    overlay = Image.new("RGBA", ground.size, (0, 0, 0, 0))
    writer = _Writer(overlay)
    for number, region in enumerate(regions, start=1):
        writer.draw(number, region)
    return from_pillow(Image.alpha_composite(ground, overlay).convert("RGB")).unsqueeze(0)


def _ground(width: int, height: int, image: torch.Tensor | None) -> Image.Image:
    if image is None:
        grey = round(BRIGHTNESS * MIDDLE_GREY)
        return Image.new("RGBA", _shown_size(width, height), (grey, grey, grey, 255))
    pixels = to_pillow(image).convert("RGB")
    scaled = pixels.resize(_shown_size(*pixels.size), Image.Resampling.LANCZOS)
    return ImageEnhance.Brightness(scaled).enhance(BRIGHTNESS).convert("RGBA")


def _shown_size(width: int, height: int) -> tuple[int, int]:
    scale = min(1.0, LONGEST_SIDE_PX / max(width, height, 1))
    return max(1, round(width * scale)), max(1, round(height * scale))


class _Writer:
    """Draws regions on an overlay; its letters are as large as the overlay is high."""

    def __init__(self, overlay: Image.Image) -> None:
        self._width, self._height = overlay.size
        self._draw = ImageDraw.Draw(overlay)
        self._letter_px = max(10, round(self._height / 64))
        self._font = ImageFont.load_default(self._letter_px)
        self._small_font = ImageFont.load_default(max(9, self._letter_px - 2))

    def draw(self, number: int, region: Region) -> None:
        """Draw the outline of a region, the colours of its palette, its number, and what is to be there."""
        color = _rgb(region.palette[0]) if region.palette else WITHOUT_COLOR
        left, right = self._span(region.x, region.width, self._width)
        top, bottom = self._span(region.y, region.height, self._height)
        self._draw.rectangle((left, top, right, bottom), outline=(*color, 255), width=2)
        self._draw_swatches(region.palette[:MAX_SWATCHES], left, top, right)
        self._draw_number(number, color, left, top)
        body = region.description
        if region.is_text and region.text:
            body = f'"{region.text}"' + (f" — {body}" if body else "")
        if body and right - left > 8:
            self._write(body[:LONGEST_TEXT], _readable(color), left, top, right, bottom)

    def _span(self, start: float, length: float, side_px: int) -> tuple[int, int]:
        ends = [max(0, min(side_px, round(share * side_px))) for share in (start, start + length)]
        return min(ends), max(ends)

    def _draw_swatches(self, palette: Sequence[str], left: int, top: int, right: int) -> None:
        if not palette or right - left <= 2:
            return
        height, width = max(5, self._letter_px // 2), (right - left) / len(palette)
        for index, color in enumerate(palette):
            ends = (left + round(index * width), top, left + round((index + 1) * width), top + height)
            self._draw.rectangle(ends, fill=_rgb(color))

    def _draw_number(self, number: int, color: Rgb, left: int, top: int) -> None:
        tag = f"{number:02}"
        width = self._draw.textlength(tag, font=self._small_font)
        self._draw.rectangle((left, top, left + width + 6, top + self._letter_px + 2), fill=(*color, 255))
        ink: Rgba = (0, 0, 0, 255) if _luminance(color) > LIGHT else (255, 255, 255, 255)
        self._draw.text((left + 3, top + 1), tag, fill=ink, font=self._small_font)

    def _write(self, body: str, color: Rgb, left: int, top: int, right: int, bottom: int) -> None:
        y = top + self._letter_px + 5
        for line in self._lines(body, right - left - 8):
            if y > bottom:
                return
            self._draw.text((left + 4, y), line, fill=(*color, 255), font=self._font)
            y += self._letter_px + 2

    def _lines(self, body: str, width_px: int) -> Iterator[str]:
        """Yield lines of whole words that are at most so wide, but for single words."""
        for paragraph in body.split("\n"):
            line = ""
            for word in paragraph.split():
                longer = f"{line} {word[:LONGEST_WORD]}".strip()
                if line and self._draw.textlength(longer, font=self._font) > width_px:
                    yield line
                    longer = word[:LONGEST_WORD]
                line = longer
            yield line


def _rgb(color: str) -> Rgb:
    """Return red, green and blue of `#RRGGBB`, white for anything else."""
    digits = color.lstrip("#")
    try:
        red, green, blue = bytes.fromhex(digits) if len(digits) == 6 else BAD_COLOR
    except ValueError:
        return BAD_COLOR
    return red, green, blue


def _luminance(color: Rgb) -> float:
    red, green, blue = color
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _readable(color: Rgb) -> Rgb:
    """Return a colour that is bright enough to be read on a dimmed image."""
    bright = _luminance(color)
    if bright >= READABLE:
        return color
    share = (READABLE - bright) / (255 - bright)
    red, green, blue = (round(part + (255 - part) * share) for part in color)
    return red, green, blue
