"""Run tests that failed beside others once more, alone: `python -m tools.run_again CACHE_DIRECTORY...`.

Tests start real processes and compute at the same time, so that a busy machine can fail one that waits for another.
What fails again is broken. What passes now is named, since a test that depends on the machine is to be mended, too:
in continuous integration (`CI=true`) it is a failure like any other.

Exit code 0: all of them pass now; 1: not all do, more failed than chance explains, or it is continuous integration;
2: nothing failed in a test, so that running again explains nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

MOST: Final = 5
LAST_FAILED: Final = Path("v", "cache", "lastfailed")  # where pytest writes the ids, below its cache directory


def failed_tests(caches: list[Path]) -> list[str]:
    """Return the ids of the tests that failed in the runs with these cache directories."""
    files = [cache / LAST_FAILED for cache in caches]
    return sorted(name for file in files if file.exists() for name in json.loads(file.read_text(encoding="utf-8")))


def run_again(names: list[str], is_ci: bool) -> int:
    """Run these tests and return the exit code."""
    if not names:
        return 2
    print(f"\nFailed: {', '.join(names)}")
    if len(names) > MOST:
        return 1
    if pytest.main(["-p", "no:cacheprovider", *names]) != pytest.ExitCode.OK:
        return 1
    print(f"PASSED ONLY WHEN RUN ALONE, to be mended: {', '.join(names)}")
    return 1 if is_ci else 0


if __name__ == "__main__":
    caches = [Path(name) for name in sys.argv[1:]]
    sys.exit(run_again(failed_tests(caches), is_ci=os.environ.get("CI") == "true"))
