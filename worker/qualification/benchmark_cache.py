"""Results of earlier benchmarks by cache key, in one file of the state directory."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmark.qualify.verdict import BenchmarkReport

FILE_NAME = "benchmark.json"
MAX_RESULTS = 32


@dataclass(frozen=True, slots=True)
class CachedBenchmark:
    report: BenchmarkReport
    measured_at: float


class BenchmarkCache:
    """Stored results. A file that is unreadable, or of another version, counts as empty: the benchmark then runs."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def find(self, key: str, now_seconds: float, ttl_seconds: float) -> CachedBenchmark | None:
        """Return the result that was measured under this key at most `ttl_seconds` ago."""
        entry = self._read().get(key)
        try:
            measured_at = float(entry["measured_at"]) if entry else 0.0
            if entry is None or not 0 <= now_seconds - measured_at <= ttl_seconds:
                return None
            return CachedBenchmark(BenchmarkReport.model_validate(entry["report"]), measured_at)
        except (KeyError, TypeError, ValueError, ValidationError):
            return None

    def store(self, key: str, report: BenchmarkReport, now_seconds: float) -> None:
        """Store a result atomically. Raises OSError."""
        results = self._read()
        results.pop(key, None)
        results[key] = {"measured_at": now_seconds, "report": report.model_dump(mode="json")}
        newest = dict(list(results.items())[-MAX_RESULTS:])
        self._write({"version": 1, "results": newest})

    def remove(self, key: str) -> None:
        """Remove a result that is no longer valid: the machine has since done worse, or its device was lost."""
        results = self._read()
        if results.pop(key, None) is not None:
            self._write({"version": 1, "results": results})

    def _read(self) -> dict[str, Any]:
        try:
            body = json.loads(self._path.read_text(encoding="utf-8"))
            results = body["results"] if body["version"] == 1 else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return dict(results) if isinstance(results, dict) else {}

    def _write(self, body: dict[str, object]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole = self._path.with_suffix(".new")
        descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(body, file, indent=1)
        whole.replace(self._path)
