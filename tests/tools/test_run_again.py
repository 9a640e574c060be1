"""Tests that failed beside others are run once more: what passes then is named, what fails again stays red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [(ONCE, 0, "PASSED ONLY WHEN RUN ALONE"), (ALWAYS, 1, "assert False"), (MANY, 1, "Failed: ")],
)
def test_failed_tests_are_run_once_more(tmp_path: Path, source: str, code: int, told: str) -> None:
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert run(tmp_path, "pytest", "-q", "-o", "cache_dir=seen").returncode == 1
    again = run(tmp_path, "tools.run_again", "seen")
    assert again.returncode == code, again.stdout + again.stderr
    assert told in again.stdout
    assert ("test_many[0]" in again.stdout) == (source is MANY)


def test_what_passes_only_the_second_time_is_red_in_continuous_integration(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ONCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert run(tmp_path, "pytest", "-q", "-o", "cache_dir=seen").returncode == 1
    again = run(tmp_path, "tools.run_again", "seen", CI="true")
    assert again.returncode == 1 and "PASSED ONLY WHEN RUN ALONE" in again.stdout


def test_what_did_not_fail_in_a_test_is_not_explained(tmp_path: Path) -> None:
    assert run(tmp_path, "tools.run_again", "seen").returncode == 2
