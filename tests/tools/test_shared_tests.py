"""Several pytest processes share the tests: each test runs once, and those of a whole folder in one process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tools.run_again import failed_tests

ROOT = Path(__file__).parents[2]
FIXTURE = """
import os
import pytest
import time
from pathlib import Path

@pytest.fixture(scope="session")
def costly():
    notes = Path(os.environ["NOTES"])
    with (notes / f"made-by-{os.getpid()}").open("x"):
        while len(list(notes.glob("made-by-*"))) < int(os.environ["PROCESSES"]):
            time.sleep(0.01)  # a process that starts late would find no test left
        yield
"""
TEST = """
import os
import pytest
from pathlib import Path

@pytest.mark.parametrize("n", range(3))
def test_it(n, request, costly):
    with (Path(os.environ["NOTES"]) / "ran").open("a") as notes:
        notes.write(f"{os.getpid()} {request.node.nodeid}\\n")
    assert "fails" not in request.node.nodeid or n != 1
"""
ONLY_FORKS_FAIL = """
import os
import time
from pathlib import Path

FIRST = os.getpid()
HAS_FAILED = Path(os.environ["NOTES"], "has-failed")

def pytest_runtest_setup(item):
    if os.getpid() != FIRST:
        HAS_FAILED.touch()
        raise RuntimeError("in a fork")
    while not HAS_FAILED.exists():
        time.sleep(0.01)
"""
FILES = ("tests/flow/test_a.py", "tests/flow/deep/test_b.py", *(f"tests/own/test_{n}.py" for n in range(6)))


def write_tests(folder: Path, *files: str) -> None:
    for file in files:
        path = folder / "project" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEST)
    (folder / "project" / "tests" / "conftest.py").write_text(FIXTURE)
    (folder / "project" / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (folder / "claims").mkdir()


def start(folder: Path, number: int, *more: str, num_processes: int = 1) -> subprocess.Popen[str]:
    """Start pytest. No test ends before so many processes have begun one."""
    options = ["-p", "tools.shared_tests", f"--claims={folder / 'claims'}", "-o", f"cache_dir={folder}/seen-{number}"]
    options += more
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=folder / "project",
        env={"PYTHONPATH": str(ROOT), "PATH": "", "NOTES": str(folder), "PROCESSES": str(num_processes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_two(folder: Path) -> tuple[list[int], list[str], str]:
    """Return the exit codes of two processes, their notes, one for each run of a test, and what they print."""
    both = [start(folder, number) for number in range(2)]
    printed = "".join(process.communicate()[0] for process in both)
    ran = folder / "ran"
    return [process.returncode for process in both], ran.read_text().splitlines() if ran.exists() else [], printed


def test_each_test_runs_in_one_of_the_processes(tmp_path: Path) -> None:
    write_tests(tmp_path, *FILES)
    codes, notes, printed = run_two(tmp_path)
    assert codes == [0, 0], printed
    processes, names = zip(*(note.split(" ", 1) for note in notes), strict=True)
    assert Counter(names) == Counter(f"{file}::test_it[{n}]" for file in FILES for n in range(3))
    units = {(process, name.partition("::")[0]) for process, name in zip(processes, names, strict=True)}
    assert len(units) == len(FILES)
    assert len({process for process, file in units if file.startswith("tests/flow/")}) == 1


def test_failures_of_all_processes_are_known_after(tmp_path: Path) -> None:
    write_tests(tmp_path, *FILES, "tests/own/test_fails.py", "tests/flow/test_fails.py")
    codes, notes, printed = run_two(tmp_path)
    assert max(codes) == 1, printed
    assert len(notes) == 3 * (len(FILES) + 2)
    failed = failed_tests([tmp_path / "seen-0", tmp_path / "seen-1"])
    assert failed == ["tests/flow/test_fails.py::test_it[1]", "tests/own/test_fails.py::test_it[1]"]


def test_forks_share_the_tests_and_their_failures_are_shown_and_known_after(tmp_path: Path) -> None:
    write_tests(tmp_path, *FILES, *(f"tests/own/test_fails_{n}.py" for n in range(20)))
    first = start(tmp_path, 0, "--processes=3", num_processes=3)
    printed, _ = first.communicate()
    assert first.returncode == 1, printed
    notes = [note.split(" ", 1) for note in (tmp_path / "ran").read_text().splitlines()]
    assert len({process for process, _ in notes}) == 3
    names = [name for _, name in notes]
    assert len(names) == len(set(names)) == 3 * (len(FILES) + 20)
    failed = [f"tests/own/test_fails_{n}.py::test_it[1]" for n in range(20)]
    assert failed_tests(sorted(tmp_path.glob("seen-0*"))) == sorted(failed)
    assert all(f"FAILED {name}" in printed for name in failed)


def test_a_fork_that_fails_alone_fails_the_whole(tmp_path: Path) -> None:
    write_tests(tmp_path, "tests/own/test_0.py", "tests/own/test_1.py")
    (tmp_path / "project" / "tests" / "own" / "conftest.py").write_text(ONLY_FORKS_FAIL)
    first = start(tmp_path, 0, "--processes=2")
    printed, _ = first.communicate()
    assert first.returncode == 1, printed
    assert "3 passed" in printed and "3 errors" in printed


def test_a_file_that_cannot_be_imported_stops_all_processes(tmp_path: Path) -> None:
    write_tests(tmp_path, *FILES)
    (tmp_path / "project" / "tests" / "own" / "test_broken.py").write_text("import no_such_module")
    codes, notes, printed = run_two(tmp_path)
    assert codes == [2, 2]
    assert not notes
    assert "no_such_module" in printed


def test_a_fixture_of_the_session_lasts_from_unit_to_unit(tmp_path: Path) -> None:
    write_tests(tmp_path, "tests/own/test_0.py", "tests/own/test_1.py")
    alone = start(tmp_path, 0)
    printed, _ = alone.communicate()
    assert alone.returncode == 0, printed  # a second start of the fixture would find the file of the first
    assert len(list(tmp_path.glob("made-by-*"))) == 1
