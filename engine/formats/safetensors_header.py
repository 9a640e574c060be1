"""The header of a `.safetensors` file: its length in eight bytes, then JSON. Free of torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The start of a file.

    `raw` is None where the length is not that of a header, and shorter than that in a truncated file.
    """

    prefix: bytes
    num_bytes: int
    raw: bytes | None

    def parsed(self) -> dict[str, object]:
        """Return the header's entries. Raises ValueError for anything but a JSON object, and for a name twice."""
        content = json.loads(self.raw or b"", object_pairs_hook=_without_doubles)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        double = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {double[:200]!r} twice")
    return content


def read_header(file: BinaryIO, max_bytes: int = MAX_HEADER_BYTES) -> SafetensorsHeader:
    """Read the header of an open file, unless it is longer than `max_bytes`."""
    prefix = file.read(LENGTH_BYTES)
    num_bytes = int.from_bytes(prefix, "little")
    is_plausible = len(prefix) == LENGTH_BYTES and 2 <= num_bytes <= max_bytes
    return SafetensorsHeader(prefix, num_bytes, file.read(num_bytes) if is_plausible else None)


def read_metadata(path: Path, max_bytes: int) -> object:
    """Return the `__metadata__` of a file; None without one, and for a header that is longer or no JSON object."""
    with path.open("rb") as file:
        header = read_header(file, max_bytes)
    try:
        return header.parsed().get("__metadata__")
    except ValueError:
        return None
