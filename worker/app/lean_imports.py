"""Imports without the optional libraries that other libraries import wherever they are installed.

The front has no use for them, and they would take 9 MB of its memory and 0.1 s of its start: structlog imports rich for
tracebacks that are never rendered so, uvicorn watchfiles for reloading, httpx rich and pygments for its command,
structlog greenlet where others do, FastAPI version 1 of pydantic to refuse its models. Nor is garbage collected during
the imports: there is none, and walking all that they make, again and again, would take a quarter of their time.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Final

UNUSED_LIBRARIES: Final = ("greenlet", "pydantic.v1", "pygments", "rich", "watchfiles")


@contextlib.contextmanager
def without_libraries(*names: str) -> Iterator[None]:
    """Let imports in the block fail for these libraries, unless they are imported already. Later imports find them."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: the import system's mark of absence
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]


@contextlib.contextmanager
def lean_imports() -> Iterator[None]:
    """Let imports in the block do without the unused libraries and without the garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with without_libraries(*UNUSED_LIBRARIES):
            yield
    finally:
        if was_enabled:
            gc.enable()
