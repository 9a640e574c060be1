"""Results of earlier benchmarks by cache key, in one file of the state directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from darkroom.worker.qualification.state_file import StateFile
from darkroom.worker.qualification.verdict import BenchmarkReport

FILE_NAME = "benchmark.json"
MAX_RESULTS = 32


@dataclass(frozen=True, slots=True)
class CachedBenchmark:
    report: BenchmarkReport
    measured_at: float


class BenchmarkCache:
    """Stored results. A file that is unreadable, or of another version, counts as empty: the benchmark then runs."""

    def __init__(self, directory: Path) -> None:
        self._file = StateFile(directory / FILE_NAME, MAX_RESULTS)

    def find(self, key: str, now_seconds: float, ttl_seconds: float) -> CachedBenchmark | None:
        """Return the result that was measured under this key at most `ttl_seconds` ago."""
        entry = self._file.read().get(key)
        try:
            measured_at = float(entry["measured_at"]) if entry else 0.0
            if entry is None or not 0 <= now_seconds - measured_at <= ttl_seconds:
                return None
            return CachedBenchmark(BenchmarkReport.model_validate(entry["report"]), measured_at)
        except (KeyError, TypeError, ValueError, ValidationError):
            return None

    def store(self, key: str, report: BenchmarkReport, now_seconds: float) -> None:
        """Store a result atomically. Raises OSError."""
        self._file.put(key, {"measured_at": now_seconds, "report": report.model_dump(mode="json")})

    def remove(self, key: str) -> None:
        """Remove a result that is no longer valid: the machine has since done worse, or its device was lost."""
        self._file.remove(key)
