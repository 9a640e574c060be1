"""The name that was probably meant by a wrong one: what a "did you mean" says. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

MAX_NAME_LENGTH = 300  # to compare a megabyte with anything takes seconds, too
CLOSE = 0.6
MODEL_ENDINGS = frozenset({".safetensors", ".ckpt", ".pt", ".pth", ".bin"})


def nearest_name(given: str, known: Iterable[Any], *, cutoff: float = CLOSE, by_start: bool = False) -> str | None:
    """Return the known name that looks most like `given`; None when none does.

    Another case, `-` for `_`, another folder or another ending of a model count as the same name. `cutoff` in 0..1 is
    how alike the others must be; with `by_start` one that begins like `given`, or the other way round, will do.
    """
    if not given or len(given) > MAX_NAME_LENGTH:
        return None
    names = {_folded(str(name)): str(name) for name in known}
    wanted = _folded(given)
    if wanted in names:
        return names[wanted]
    alike = difflib.get_close_matches(wanted, names, n=1, cutoff=cutoff)
    if not alike and by_start:
        alike = [name for name in names if name.startswith(wanted) or wanted.startswith(name)]
    return names[alike[0]] if alike else None


def _folded(name: str) -> str:
    path = PurePosixPath(name.replace("\\", "/").lower())
    stem = path.stem if path.suffix in MODEL_ENDINGS else path.name
    return stem.replace("-", "_").replace(" ", "_")
