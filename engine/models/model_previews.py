"""Preview images of model files: an image beside the file, or one within a safetensors header. Blocking.

Where ComfyUI looks: `NAME.jpg` and `NAME.preview.jpg` (any image type) beside `NAME.safetensors`, then
`ssmd_cover_images` in its metadata. `modelspec.thumbnail`, of the ModelSpec standard, is looked at last.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

from PIL import Image

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.safetensors_file import SafetensorsFile

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".avif")
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""Pillow's errors for a file that is no image."""


def preview_of(file: Path, root: Path, longer_side_px: int | None = None) -> bytes | None:
    """Return a model's preview image as WebP, None without one. Images outside of `root` are not read."""
    for source in _sources(file, root):
        try:
            with Image.open(source) as image:
                if longer_side_px is not None:
                    image.thumbnail((longer_side_px, longer_side_px), Image.Resampling.LANCZOS)
                encoded = BytesIO()
                image.save(encoded, "WEBP")
                return encoded.getvalue()
        except UNREADABLE:
            continue
    return None


def _sources(file: Path, root: Path) -> Iterator[Path | BytesIO]:
    within = root.resolve()
    for beside in (
        file.with_name(f"{file.stem}{middle}{suffix}") for middle in ("", ".preview") for suffix in SUFFIXES
    ):
        if beside.is_file() and beside.resolve().is_relative_to(within):
            yield beside
    if file.suffix == ".safetensors" and file.is_file():
        yield from map(BytesIO, _embedded(file))


def _embedded(file: Path) -> Iterator[bytes]:
    try:
        metadata = SafetensorsFile(file).metadata
    except (BadModelFile, OSError):
        return
    try:
        covers = json.loads(metadata.get("ssmd_cover_images", "[]"))
    except ValueError:
        covers = []
    texts = [*(covers if isinstance(covers, list) else ()), metadata.get("modelspec.thumbnail", "").rpartition(",")[2]]
    for text in texts:
        if isinstance(text, str) and text:
            try:
                yield base64.b64decode(text, validate=True)
            except binascii.Error:
                continue
