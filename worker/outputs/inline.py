"""Outputs as base64 within the response, up to a size limit."""

from __future__ import annotations

import base64
from pathlib import Path

from darkroom.worker.json.values import JsonObject, object_at


def with_data(public: JsonObject, record: JsonObject, folder: Path, max_bytes: int) -> dict[str, object]:
    """Return a public record with the data of its file and of its thumbnail, where they exist. Reads the files."""
    shown: dict[str, object] = dict(public)
    if record.get("path"):
        media_type = str(record.get("media_type") or "application/octet-stream")
        shown |= as_base64(folder / str(record["path"]), media_type, max_bytes)
    if "thumbnail" in record:
        shown["thumbnail"] = with_data(
            object_at(public, "thumbnail"), object_at(record, "thumbnail"), folder, max_bytes
        )
    return shown


def as_base64(path: Path, media_type: str, max_bytes: int) -> dict[str, object]:
    """Return the fields `data` and `mimetype` of an output; if it cannot be inlined, `data` is null and `error` is set.

    Blocking: call it in a thread.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes <= max_bytes:
            return {"data": base64.b64encode(path.read_bytes()).decode(), "mimetype": media_type}
        error = f"{size_bytes} bytes are over the limit of {max_bytes}"
    except OSError:
        error = "the file has expired"
    return {"data": None, "mimetype": media_type, "error": error}
