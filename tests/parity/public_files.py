"""The tensors of published model files by name and shape, read from `public_models.json.xz`."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path

Shape = tuple[int, ...]


@cache
def public_files() -> Mapping[str, Mapping[str, Shape]]:
    """Return names and shapes of all tensors, by file."""
    data = json.loads(lzma.decompress(Path(__file__).with_name("public_models.json.xz").read_bytes()))
    return {
        file: {
            prefix + name: tuple(shape)
            for prefix, component in parts
            for name, shape in data["components"][component].items()
        }
        for file, parts in data["files"].items()
    }
