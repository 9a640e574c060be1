"""Tensors that share bytes of a file: a small file could stand for many times its size."""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.mapped_file import TensorPlace

EXPECTED = "tensors with bytes of their own"


def check_overlaps(file_name: str, tensors: Mapping[str, TensorPlace]) -> None:
    """Raise `BadModelFile` for the first two tensors of a file that share bytes."""
    end, before = 0, ""
    for start, num_bytes, name in sorted((place.start, place.num_bytes, name) for name, place in tensors.items()):
        if num_bytes and start < end:
            raise BadModelFile(file_name, f"tensors {before[:200]!r} and {name[:200]!r} on the same bytes", EXPECTED)
        if start + num_bytes > end:
            end, before = start + num_bytes, name


def check_gaps(file_name: str, tensors: Mapping[str, TensorPlace], data_start: int) -> None:
    """Raise `BadModelFile` for bytes before or between the tensors of a file that belong to none of them.

    The file has no overlaps (`check_overlaps`).
    """
    end = data_start
    for start, num_bytes, name in sorted((place.start, place.num_bytes, name) for name, place in tensors.items()):
        if start != end:
            found = f"{start - end:,} bytes before tensor {name[:200]!r} that belong to none"
            raise BadModelFile(file_name, found, "tensors one behind the other")
        end = start + num_bytes
