"""Measured results by key, in one JSON file of the state directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VERSION = 1


class StateFile:
    """Results by key; at most `max_results`, the oldest are dropped. An unreadable file counts as empty."""

    def __init__(self, path: Path, max_results: int) -> None:
        self._path = path
        self._max_results = max_results

    def read(self) -> dict[str, Any]:
        try:
            body = json.loads(self._path.read_text(encoding="utf-8"))
            results = body["results"] if body["version"] == VERSION else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return dict(results) if isinstance(results, dict) else {}

    def put(self, key: str, result: object) -> None:
        """Store a result atomically as the newest. Raises OSError."""
        results = self.read()
        results.pop(key, None)
        results[key] = result
        self.write(results)

    def remove(self, key: str) -> None:
        """Remove a result, if it is there. Raises OSError."""
        results = self.read()
        if results.pop(key, None) is not None:
            self.write(results)

    def write(self, results: dict[str, Any]) -> None:
        """Replace all results atomically. Raises OSError."""
        newest = dict(list(results.items())[-self._max_results :])
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole = self._path.with_suffix(".new")
        descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "results": newest}, file, indent=1)
        whole.replace(self._path)
