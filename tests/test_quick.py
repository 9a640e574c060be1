"""The quick run leaves out what starts a process, families that another stands for, and costly files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from darkroom.engine.families.registry import default_family, families
from tests.quick import COSTLY_SECONDS, costly_files, first_of_each_kind, write_costly_files

ROOT = Path(__file__).parents[1]
TESTS = """
import asyncio
import subprocess
import sys
import pytest
from darkroom.engine.families.registry import families

@pytest.fixture
def program():
    return subprocess.run([sys.executable, "-c", ""])

def test_by_a_fixture(program):
    pass

def test_in_a_thread_that_answers_for_it():
    async def start():
        await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    async def answer():
        return (await asyncio.gather(start(), return_exceptions=True))[0]
    assert asyncio.run(answer()) is None

def test_without_a_process():
    pass

def test_that_fails():
    assert False

@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_of(family):
    pass
"""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, float]]:
    """Output of a quick run, and the costs that it has counted."""
    folder = tmp_path_factory.mktemp("quick")
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.quick", "-rA", "-q", "--costs=costs", "test_it.py"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, json.loads((folder / "costs").read_text())


def test_a_test_that_starts_a_process_is_skipped_and_others_are_not(quick: tuple[str, dict[str, float]]) -> None:
    printed, _ = quick
    assert "2 skipped" in printed and printed.count(": starts a process") == 2
    assert "PASSED test_it.py::test_by_a_fixture" not in printed
    assert "PASSED test_it.py::test_in_a_thread" not in printed
    assert "PASSED test_it.py::test_without_a_process" in printed
    assert "FAILED test_it.py::test_that_fails" in printed
    ran = {family.name for family in families() if f"PASSED test_it.py::test_of[{family.name}]" in printed}
    assert ran == first_of_each_kind()


def test_costs_are_counted_by_file(quick: tuple[str, dict[str, float]]) -> None:
    _, costs = quick
    assert list(costs) == ["test_it.py"] and costs["test_it.py"] > 0


def test_the_list_has_the_files_above_the_limit(tmp_path: Path) -> None:
    for name, costs in (("1", {"a.py": 2 * COSTLY_SECONDS, "b.py": 0.1}), ("2", {"c.py": COSTLY_SECONDS + 1})):
        (tmp_path / name).write_text(json.dumps(costs))
    write_costly_files([tmp_path / "1", tmp_path / "2"], tmp_path / "list")
    assert costly_files(tmp_path / "list") == {"a.py", "c.py"}


def test_images_videos_and_audio_have_a_family_each() -> None:
    first = [family for family in families() if family.name in first_of_each_kind()]
    assert default_family() in first and len(first) < len(families()) / 3
    assert any(family.default.frames for family in first) and any(family.default.seconds for family in first)
