"""Name the failed tests that pass when they run alone: `python -m tools.run_again CACHE_DIRECTORY...`.

Tests start real processes and compute at the same time, so that a busy machine can fail one that waits for another.
Such a test is to be mended as any other that failed: this is a hint for whoever mends it, and changes no exit code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

MOST: Final = 5
"""More failures than these have another cause than chance."""

LAST_FAILED: Final = Path("v", "cache", "lastfailed")  # where pytest writes the ids, below its cache directory


class FailedAgain:
    """A pytest plugin that collects the ids of failed tests."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.add(report.nodeid)


def failed_tests(caches: list[Path]) -> list[str]:
    """Return the ids of the tests that failed in the runs with these cache directories."""
    files = [cache / LAST_FAILED for cache in caches]
    return sorted(name for file in files if file.exists() for name in json.loads(file.read_text(encoding="utf-8")))


def passing_alone(names: list[str]) -> list[str]:
    """Run these tests in this process and return those that pass."""
    failed = FailedAgain()
    code = pytest.main(["-p", "no:cacheprovider", *names], plugins=[failed])
    is_run = code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return [name for name in names if is_run and name not in failed.names]


def main(caches: list[Path]) -> None:
    names = failed_tests(caches)
    if not names:
        return
    print(f"\nFailed: {', '.join(names)}")
    if len(names) <= MOST and (passing := passing_alone(names)):
        print(f"FAILED, and passed when run alone: {', '.join(passing)}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
