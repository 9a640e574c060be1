"""Conversion of images to another format, and thumbnails. Runs in media processes alone (`media_child.py`).

Transparency is composed onto white if the format has none, and 16 bits are
reduced to 8 if it has no more. All frames of an animation and the colour profile are kept. The source's metadata is not
carried over; `exif` and `texts` are the metadata of the new file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from darkroom.worker.media.image_bounds import MAX_INPUT_PIXELS, OutOfBounds, check_opened, check_structure
from darkroom.worker.media.kinds import HEAD_BYTES, kind_of
from darkroom.worker.outputs.embedded import exif_of
from darkroom.worker.outputs.options import ImageFormat

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_QUALITY: Mapping[ImageFormat, int] = {"jpeg": 90, "webp": 90, "avif": 75}
EXTENSIONS: Mapping[ImageFormat, str] = {"png": ".png", "jpeg": ".jpg", "webp": ".webp", "avif": ".avif"}
THUMBNAIL_QUALITY = 80
PNG_COMPRESSION = 4  # as ComfyUI saves


class ConversionFailed(Exception):
    """An image that cannot be converted to the format; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Size:
    width_px: int
    height_px: int


def convert(source: Path, target: Path, form: ImageFormat, quality: int | None, texts: Mapping[str, str]) -> None:
    """Convert the image of `source` to another format and write it to `target`. Raises ConversionFailed.

    An image with more pixels in all frames than an input may have is not converted. MemoryError passes through.
    """
    from PIL import Image, ImageOps

    try:
        _check_bounds(source)
        with Image.open(source) as image:
            check_opened(image, MAX_INPUT_PIXELS)
            num_frames = getattr(image, "n_frames", 1)
            if num_frames > 1 and form == "jpeg":
                raise ConversionFailed(f"jpeg holds one image, this file has {num_frames}")
            options = _options(form, quality, texts) | _profile(image)
            if num_frames > 1:
                _save_frames(image, target, form, options)
            else:
                ImageOps.exif_transpose(image, in_place=True)
                _bare(_plain(image, form)).save(target, form.upper(), **options)
    except OutOfBounds as error:
        raise ConversionFailed(f"the image {error}") from None
    except Image.DecompressionBombError:
        raise ConversionFailed("the image has too many pixels") from None
    except (OSError, SyntaxError, ValueError, KeyError, EOFError, RuntimeError) as error:  # of Pillow's coders
        raise ConversionFailed(f"the image cannot be made {form} ({reason(error)})") from None


def make_thumbnail(source: Path, target: Path, longer_side_px: int) -> Size:
    """Write a WebP thumbnail of the (first) image, never larger than the image. Raises ConversionFailed."""
    from PIL import Image, ImageOps

    try:
        with Image.open(source) as image:
            image.draft("RGB", (longer_side_px, longer_side_px))
            ImageOps.exif_transpose(image, in_place=True)
            small = _bare(_plain(image, "webp"))
            small.thumbnail((longer_side_px, longer_side_px), Image.Resampling.LANCZOS)
            small.save(target, "WEBP", quality=THUMBNAIL_QUALITY)
            return Size(small.width, small.height)
    except Image.DecompressionBombError:
        raise ConversionFailed("the image has too many pixels") from None
    except (OSError, SyntaxError, ValueError, EOFError, RuntimeError) as error:
        raise ConversionFailed(f"no thumbnail can be made ({reason(error)})") from None


def _check_bounds(source: Path) -> None:
    """Raise OutOfBounds for a file with more frames or blocks than the limit."""
    with source.open("rb") as file:
        kind = kind_of(file.read(HEAD_BYTES))
    if kind is not None:
        check_structure(source, kind.extension, MAX_INPUT_PIXELS)


def reason(error: Exception) -> str:
    """Return the message of a codec error, or a generic one for errors that repeat a path."""
    is_plain = isinstance(error, ValueError) and not isinstance(error, OSError)
    return f"{type(error).__name__}: {error}" if is_plain else type(error).__name__


def _options(form: ImageFormat, quality: int | None, texts: Mapping[str, str]) -> dict[str, object]:
    if form == "png":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        for key, text in texts.items():
            info.add_text(key, text)
        return {"compress_level": PNG_COMPRESSION, "pnginfo": info}
    exif = exif_of(texts)
    return {"quality": quality or DEFAULT_QUALITY[form]} | ({"exif": exif} if exif else {})


def _profile(image: Image.Image) -> dict[str, object]:
    profile = image.info.get("icc_profile")
    return {"icc_profile": profile} if profile and image.mode != "CMYK" else {}


def _save_frames(image: Image.Image, target: Path, form: ImageFormat, options: dict[str, object]) -> None:
    from PIL import ImageSequence

    frames, durations = [], []
    for frame in ImageSequence.Iterator(image):
        durations.append(frame.info.get("duration") or 100)
        frames.append(_bare(_plain(frame, form).copy()))
    first, *rest = frames
    first.save(
        target,
        form.upper(),
        save_all=True,
        append_images=rest,
        duration=durations,
        loop=image.info.get("loop", 0),
        **options,
    )


def _bare(image: Image.Image) -> Image.Image:
    """Remove an image's metadata, since Pillow's encoders write a comment found there, and return it."""
    image.info = {key: value for key, value in image.info.items() if key == "transparency"}
    return image


def _plain(image: Image.Image, form: ImageFormat) -> Image.Image:
    """Convert an image to a mode that the format supports.

    For PNG it is unchanged. Otherwise it is RGB, or RGBA if there is transparency.
    """
    from PIL import Image

    if form == "png" and image.mode in ("1", "L", "LA", "I;16", "RGB", "RGBA", "P"):
        return image
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    has_alpha = "A" in image.mode or "transparency" in image.info
    mode = "RGBA" if has_alpha else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    if has_alpha and form == "jpeg":
        ground = Image.new("RGBA", image.size, "white")
        ground.alpha_composite(image)
        image = ground.convert("RGB")
    return image
