"""Outputs as base64 within the reply, up to a limit."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any


def as_base64(path: Path, media_type: str, max_bytes: int) -> dict[str, Any]:
    """The fields that a result's output gets: `data` and `mimetype`; `data` is null and `error` says why if it cannot.

    Reads the file; call it in a thread.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes <= max_bytes:
            return {"data": base64.b64encode(path.read_bytes()).decode(), "mimetype": media_type}
        error = f"{size_bytes} bytes are over the limit of {max_bytes}"
    except OSError:
        error = "the file has expired"
    return {"data": None, "mimetype": media_type, "error": error}
