"""KnownNodes: the node classes of the fallback, remembered while it is not started and over restarts of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FRESH_SECONDS = 600.0
"""Age up to which a list may refuse a workflow: a pack or a model file may have been added since."""


class KnownNodes:
    """Node classes as the fallback listed them last. `path` None: they are not stored."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._nodes: Mapping[str, Any] | None = None
        self._read_at: float | None = None

    @property
    def is_fresh(self) -> bool:
        """True if the fallback itself has listed them a short time ago."""
        return self._read_at is not None and self._clock() - self._read_at < FRESH_SECONDS

    async def last(self) -> Mapping[str, Any] | None:
        """Return the node classes; None before the fallback's first start."""
        if self._nodes is None and self._path is not None:
            self._nodes = await asyncio.to_thread(_read, self._path)
        return self._nodes

    async def keep(self, nodes: Mapping[str, Any]) -> None:
        """Remember what a running fallback has listed, if that is another list than the last one."""
        if nodes is self._nodes:
            return
        self._nodes, self._read_at = nodes, self._clock()
        if self._path is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(_write_json, self._path, nodes)


def write_private(path: Path, content: bytes) -> None:
    """Write a file in one step, for this user alone. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_suffix(".part")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)


def _write_json(path: Path, nodes: Mapping[str, Any]) -> None:
    write_private(path, json.dumps(nodes).encode())


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
