"""Generation metadata in PNG, JPEG and WebP images, added or removed without encoding the image again.

The layout is ComfyUI's: text chunks `prompt` and `workflow` in PNG; elsewhere `key:text` in the Exif tags Model and
Make (and those counting down from it). An image's orientation is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from darkroom.worker.outputs import jpeg_segments, webp_chunks
from darkroom.worker.outputs.options import MetadataLevel
from darkroom.worker.outputs.png_chunks import contents_of_png, rewrite_png

EXIF_ORIENTATION, EXIF_MAKE, EXIF_MODEL = 0x0112, 0x010F, 0x0110
EXIF_PREFIX = b"Exif\0\0"
REWRITTEN_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})


def wanted_texts(level: MetadataLevel, texts: Mapping[str, str]) -> dict[str, str]:
    """Select the entries of `texts` (`prompt`, `workflow` and those of the client) that an image is to contain."""
    match level:
        case "none":
            return {}
        case "prompt":
            return {key: text for key, text in texts.items() if key == "prompt"}
        case "full":
            return dict(texts)


def needs_rewrite(source: Path, media_type: str, level: MetadataLevel, texts: Mapping[str, str]) -> bool:
    """Return True if `rewrite` would write a file. Reads the structure of the file alone.

    Raises ValueError for a broken file.
    """
    wanted, drops = wanted_texts(level, texts), level != "full"
    if media_type == "image/png":
        contents = contents_of_png(source)
        present = {key for key, _ in contents}
        # A file cached by a foreign engine may contain an earlier job's prompt under the same name.
        return not (sorted(contents, key=str) == sorted(wanted.items(), key=str) if drops else present >= wanted.keys())
    holder = jpeg_segments if media_type == "image/jpeg" else webp_chunks
    return drops if holder.has_metadata(source) else bool(wanted)


def rewrite(source: Path, target: Path, media_type: str, level: MetadataLevel, texts: Mapping[str, str]) -> bool:
    """Write the image to `target` with the metadata that `level` selects; return False if it needs no change.

    `full` adds missing entries and removes nothing. Raises ValueError for a file that is broken or cannot hold the
    metadata.
    """
    if not needs_rewrite(source, media_type, level, texts):
        return False
    wanted, drops = wanted_texts(level, texts), level != "full"
    if media_type == "image/png":
        present = set() if drops else {key for key, _ in contents_of_png(source)}
        added = {key: text for key, text in wanted.items() if key not in present}
        target.parent.mkdir(mode=0o700, exist_ok=True)
        rewrite_png(source, target, drops=drops, texts=added)
        return True
    holder = jpeg_segments if media_type == "image/jpeg" else webp_chunks
    target.parent.mkdir(mode=0o700, exist_ok=True)
    exif = exif_of(wanted, _orientation_in(holder.exif_in(source)))
    if media_type == "image/jpeg":
        jpeg_segments.rewrite_jpeg(source, target, drops=drops, exif=exif)
    else:
        webp_chunks.rewrite_webp(source, target, drops=drops, exif=exif.removeprefix(EXIF_PREFIX))
    return True


def exif_of(texts: Mapping[str, str], orientation: int = 1) -> bytes:
    """Return an Exif block (`Exif\\0\\0` and TIFF) that contains the texts; empty if there is nothing to store."""
    from PIL import Image  # imported lazily: only needed if images are changed

    exif = Image.Exif()
    if "prompt" in texts:
        exif[EXIF_MODEL] = f"prompt:{texts['prompt']}"
    for index, key in enumerate(key for key in texts if key != "prompt"):
        exif[EXIF_MAKE - index] = f"{key}:{texts[key]}"
    if orientation != 1:
        exif[EXIF_ORIENTATION] = orientation
    return exif.tobytes() if len(exif) else b""


def _orientation_in(block: bytes) -> int:
    """Return the orientation in an Exif block; 1 if the block is damaged or has none."""
    if not block:
        return 1
    from PIL import Image

    exif = Image.Exif()
    try:
        exif.load(block)
        found = exif.get(EXIF_ORIENTATION, 1)
    except (SyntaxError, ValueError, OSError, struct.error, KeyError):
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1
