"""Removal of the `metadata` element of an SVG document (SVG 2, section 5.10), where nodes store the prompt."""

from __future__ import annotations

import re
from pathlib import Path

SVG_TYPE = "image/svg+xml"
MAX_SVG_BYTES = 32 << 20  # read at once
CDATA = rb"<!\[CDATA\[.*?\]\]>"
ELEMENT = re.compile(
    rb"\s*<metadata\b(?:[^>]*/>|[^>]*>(?:" + CDATA + rb"|(?!<!\[CDATA\[).)*?</metadata\s*>)", re.DOTALL
)


def remove_metadata(source: Path, target: Path) -> bool:
    """Copy a document to `target` without its metadata.

    Returns False, and writes nothing, if it has none. Raises ValueError for a document that is too large.
    """
    size_bytes = source.stat().st_size
    if size_bytes > MAX_SVG_BYTES:
        raise ValueError(f"SVG: too large; got {size_bytes} bytes, expected at most {MAX_SVG_BYTES}")
    kept, num_removed = ELEMENT.subn(b"", source.read_bytes())
    if not num_removed:
        return False
    target.parent.mkdir(mode=0o700, exist_ok=True)
    target.write_bytes(kept)
    return True
