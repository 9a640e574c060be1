"""Images as `/view` shows them: previews, single channels; and `/upload/mask`'s new alpha. Blocking."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import IO

from PIL import Image
from PIL.PngImagePlugin import PngInfo

DEFAULT_QUALITY = 90


def preview(path: Path, wish: str, channel: str) -> tuple[bytes, str]:
    """Return the image as WebP or JPEG, and its media type; `wish` is `format` or `format;quality`.

    WebP where JPEG could not hold it (`channel` with an alpha) or another format is wished for.
    """
    parts = wish.split(";")
    image_format = parts[0] if parts[0] in ("webp", "jpeg") and "a" not in channel else "webp"
    quality = int(parts[-1]) if parts[-1].isdigit() else DEFAULT_QUALITY
    with Image.open(path) as image:
        shown = image.convert("RGB") if image_format == "jpeg" or channel == "rgb" else image
        return _encode(shown, image_format, quality=min(quality, 100)), f"image/{image_format}"


def without_alpha(path: Path) -> bytes:
    """Return the colours as PNG, transparent parts with the colours underneath."""
    with Image.open(path) as image:
        if image.mode == "RGBA":
            return _encode(Image.merge("RGB", image.split()[:3]), "png")
        return _encode(image.convert("RGB"), "png")


def alpha_only(path: Path) -> bytes:
    """Return the transparency as the alpha of a black PNG; opaque where the image has none."""
    with Image.open(path) as image:
        alpha = image.getchannel("A") if image.mode == "RGBA" else Image.new("L", image.size, 255)
        shown = Image.new("RGBA", image.size)
        shown.putalpha(alpha)
        return _encode(shown, "png")


def write_with_mask(original: Path, mask: IO[bytes], target: Path) -> None:
    """Write `original` as PNG with the alpha of the image `mask`; its texts (the prompt) are kept."""
    with Image.open(original) as image, Image.open(mask) as masking:
        texts = PngInfo()
        for key, text in getattr(image, "text", {}).items():
            texts.add_text(key, text)
        painted = image.convert("RGBA")
        painted.putalpha(masking.convert("RGBA").getchannel("A"))
        painted.save(target, format="PNG", compress_level=4, pnginfo=texts)


def _encode(image: Image.Image, image_format: str, *, quality: int | None = None) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format=image_format, **({} if quality is None else {"quality": quality}))
    return buffer.getvalue()
