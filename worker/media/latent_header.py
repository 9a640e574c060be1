"""Check of a latent's safetensors header, before the engine maps the file; its size is bounded before it is parsed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

MAX_HEADER_BYTES = 8 << 20  # workflows are stored in it
MAX_TENSORS = 64
MAX_DIMENSIONS = 8
TENSOR = "latent_tensor"
ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


class BadLatent(ValueError):
    """A file that is not a latent, or whose header exceeds the limits."""


def check_latent_header(path: Path) -> None:
    """Check that a file is a complete latent in SaveLatent's format with a plausible header. Raises BadLatent."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise BadLatent(f"has a header of {header_bytes} bytes; expected at most {MAX_HEADER_BYTES}")
        if header_bytes + 8 > size_bytes:
            raise BadLatent(f"is cut off within its header, at {size_bytes} bytes")
        try:
            header = json.loads(file.read(header_bytes))
        except (ValueError, RecursionError):
            raise BadLatent("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise BadLatent("has a header that is not a JSON object")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise BadLatent(f"has {len(header)} tensors; expected at most {MAX_TENSORS}")
    if TENSOR not in header:
        raise BadLatent(f"has no tensor {TENSOR!r}; expected a latent saved by SaveLatent")
    for name, entry in header.items():
        if not _is_whole(entry, size_bytes - 8 - header_bytes):
            raise BadLatent(f"has a malformed entry for its tensor {name[:80]!r}")


def _is_whole(entry: object, data_bytes: int) -> bool:
    """Return True if an entry has a known type and as many bytes within the file as its shape requires."""
    if not isinstance(entry, dict):
        return False
    item_bytes = ITEM_BYTES.get(str(entry.get("dtype")))
    shape, place = entry.get("shape"), entry.get("data_offsets")
    if item_bytes is None or not _are_sizes(shape) or not _are_sizes(place):
        return False
    if len(place) != 2 or len(shape) > MAX_DIMENSIONS:
        return False
    start, end = place
    return bool(0 <= start <= end <= data_bytes and math.prod(shape) * item_bytes == end - start)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 48 for item in value)
