"""Imports of packs that have a fallback: `try: from comfy.x import y` with a handler of ImportError that goes on.

Such a pack works with a ComfyUI that lacks the name, by code of its own; a placeholder in its place would be used and
fail. The import is found in the source of the frame that runs it. A handler that imports another module, such as one
that ComfyUI once had, is a fallback only where that module is there.
"""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Callable
from functools import lru_cache
from types import FrameType

IMPORTLIB = "<frozen importlib."
IMPORTING = frozenset({dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"]})
CATCHING = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
MAX_KEPT = 256
IMPORTS = (ast.Import, ast.ImportFrom)

Lines = tuple[int, int, frozenset[str]]  # the first and the last of an import, and what its handler imports


def has_fallback(frame: FrameType | None, is_there: Callable[[str], bool]) -> bool:
    """Return True where the innermost import statement from a frame on stands in a `try` that goes on without it.

    `is_there` says of a module whether it can be imported.
    """
    while frame is not None and frame.f_code.co_filename.startswith(IMPORTLIB):
        frame = frame.f_back
    if frame is None or frame.f_lasti < 0 or frame.f_code.co_code[frame.f_lasti] not in IMPORTING:
        return False
    guarded = _guarded_lines("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    return any(first <= frame.f_lineno <= last and all(map(is_there, modules)) for first, last, modules in guarded)


@lru_cache(MAX_KEPT)
def _guarded_lines(source: str) -> tuple[Lines, ...]:
    """Return the lines of imports whose failure a handler around them answers otherwise than by raising."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = []
    for block in ast.walk(tree):
        handler = _handler_of(block) if isinstance(block, ast.Try) else None
        if handler is not None and isinstance(block, ast.Try):
            modules = frozenset(_modules(handler.body))
            imports = [item for line in block.body for item in ast.walk(line) if isinstance(item, IMPORTS)]
            found += [(item.lineno, item.end_lineno or item.lineno, modules) for item in imports]
    return tuple(found)


def _handler_of(block: ast.Try) -> ast.ExceptHandler | None:
    """Return the first handler that takes an ImportError, None where it raises or there is none."""
    handler = next((item for item in block.handlers if _catches(item.type)), None)
    raises = handler is not None and any(isinstance(item, ast.Raise) for item in ast.walk(handler))
    return None if raises else handler


def _modules(statements: list[ast.stmt]) -> list[str]:
    """Return the modules that statements import, those in a `try` of their own left out."""
    found: list[str] = []
    for item in statements:
        if isinstance(item, ast.Import):
            found += [alias.name for alias in item.names]
        elif isinstance(item, ast.ImportFrom) and item.module and not item.level:
            found.append(item.module)
    return found


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(item, ast.Name) and item.id in CATCHING for item in kinds)
