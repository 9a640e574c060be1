"""Imports of packs that have a fallback: `try: from comfy.x import y` with a handler of ImportError that goes on.

Such a pack works with a ComfyUI that lacks the name, by code of its own; a placeholder in its place would be used and
fail. The import is found in the source of the frame that runs it.
"""

from __future__ import annotations

import ast
import dis
import linecache
from functools import lru_cache
from types import FrameType

IMPORTLIB = "<frozen importlib."
IMPORTING = frozenset({dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"]})
CATCHING = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
MAX_KEPT = 256

Lines = tuple[int, int]


def has_fallback(frame: FrameType | None) -> bool:
    """Return True where the innermost import statement from a frame on stands in a `try` that goes on without it."""
    while frame is not None and frame.f_code.co_filename.startswith(IMPORTLIB):
        frame = frame.f_back
    if frame is None or frame.f_lasti < 0 or frame.f_code.co_code[frame.f_lasti] not in IMPORTING:
        return False
    guarded = _guarded_lines("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    return any(first <= frame.f_lineno <= last for first, last in guarded)


@lru_cache(MAX_KEPT)
def _guarded_lines(source: str) -> tuple[Lines, ...]:
    """Return the lines of imports whose failure a handler around them answers otherwise than by raising."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = []
    for block in ast.walk(tree):
        if isinstance(block, ast.Try) and _goes_on(block.handlers):
            statements = (item for line in block.body for item in ast.walk(line))
            imports = [item for item in statements if isinstance(item, ast.Import | ast.ImportFrom)]
            found += [(item.lineno, item.end_lineno or item.lineno) for item in imports]
    return tuple(found)


def _goes_on(handlers: list[ast.ExceptHandler]) -> bool:
    """Return True where the first handler that takes an ImportError does not raise."""
    handler = next((item for item in handlers if _catches(item.type)), None)
    return handler is not None and not any(isinstance(item, ast.Raise) for item in ast.walk(handler))


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(item, ast.Name) and item.id in CATCHING for item in kinds)
