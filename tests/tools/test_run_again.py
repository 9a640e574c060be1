"""Tests that failed together with others are run once more, alone: those that pass then are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ONCE = """
from pathlib import Path

def test_once():
    marker = Path(__file__).with_name("marker")
    was_there = marker.exists()
    marker.touch()
    assert was_there

def test_fine():
    pass
"""
ALWAYS = "def test_always():\n    assert False\n"
MANY = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_many(n):\n    assert False\n"


def run(folder: Path, module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def hint(tmp_path: Path, source: str) -> str:
    """Return the text that is printed after a run of pytest that failed."""
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert run(tmp_path, "pytest", "-q", "-o", "cache_dir=seen").returncode == 1
    again = run(tmp_path, "tools.run_again", "seen")
    assert again.returncode == 0, again.stderr
    return again.stdout


def test_a_test_that_passes_alone_is_named(tmp_path: Path) -> None:
    printed = hint(tmp_path, ONCE + ALWAYS)
    assert printed.splitlines()[-1] == "FAILED, and passed when run alone: test_it.py::test_once"


def test_a_test_that_fails_again_is_shown_again(tmp_path: Path) -> None:
    printed = hint(tmp_path, ALWAYS)
    assert "assert False" in printed and "run alone" not in printed


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    printed = hint(tmp_path, MANY)
    assert "test_many[0]" in printed and "assert False" not in printed


def test_what_did_not_fail_in_a_test_is_not_run(tmp_path: Path) -> None:
    again = run(tmp_path, "tools.run_again", "seen")
    assert (again.returncode, again.stdout) == (0, "")


def test_a_failure_stays_red_when_it_passes_alone(tmp_path: Path) -> None:
    """The line of test.sh that runs it takes nothing from the exit code."""
    (line,) = [line for line in (ROOT / "test.sh").read_text().splitlines() if "tools.run_again" in line]
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")
    (tmp_path / "run").write_text(f"set -euo pipefail\ntests=3 outputs=seen\n{line.strip()}\nexit $tests\n")
    done = subprocess.run(["bash", "run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
