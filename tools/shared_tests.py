"""A pytest plugin by which several processes share one queue of tests.

    python -m pytest -p tools.shared_tests --claims=DIRECTORY --processes=3

The tests are collected once, which takes half a minute of the processor; then the process forks. Each of the
processes runs the tests that it claims, a file at a time, until none is left. So all of them end together, however long
a file takes and however fast the machine is. A folder whose tests share costly fixtures of the session is claimed
whole, and first, since it takes longest.

What the forks print comes when all have ended, before the summary of the first. A fork's pytest cache is beside that of
the first, its name followed by the fork's number.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import pytest
from _pytest.cacheprovider import Cache
from _pytest.capture import CaptureManager

PR_SET_PDEATHSIG: Final = 1
"""The option of prctl(2) for the signal that a process gets when its parent ends."""

WHOLE: Final = ("tests/flow/", "tests/parity/", "tests/browser/")


def unit_of(name: str) -> str:
    """Return the unit that is claimed with the test of this id: its folder where that is whole, else its file."""
    return next((folder for folder in WHOLE if name.startswith(folder)), name.partition("::")[0])


def units(items: Iterable[pytest.Item]) -> list[tuple[str, list[pytest.Item]]]:
    """Return the units with their tests, whole folders first."""
    by_unit: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_unit.setdefault(unit_of(item.nodeid), []).append(item)
    return sorted(by_unit.items(), key=lambda unit: unit[0] not in WHOLE)


def claim(unit: str, claims: Path) -> bool:
    """Return True for the first process that asks for the unit."""
    try:
        (claims / unit.replace("/", "+")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def claimed(items: Iterable[pytest.Item], claims: Path) -> Iterator[pytest.Item]:
    """Yield the tests of each unit that no other process has claimed, which it claims when it gets there."""
    for unit, tests in units(items):
        if claim(unit, claims):
            yield from tests


class Forks:
    """The processes that this one has forked, each with the file that it prints to. A fork itself has none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._printed: dict[int, Path] = {}

    def begin(self, config: pytest.Config, num_processes: int) -> None:
        """Fork until there are so many processes. Returns in each of them."""
        for number in range(2, num_processes + 1):
            config.get_terminal_writer().flush()
            sys.stderr.flush()
            printed = self._directory / f"printed-{number}"
            process = os.fork()
            if process == 0:
                self._printed = {}
                if sys.platform == "linux":
                    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
                _print_to(printed, config)
                _move_cache(config, number)
                return
            self._printed[process] = printed

    def wait(self) -> int:
        """Wait for the forks, print what they have printed, and return the largest of their exit codes."""
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in self._printed]
        for printed in self._printed.values():
            print(printed.read_text("utf-8", errors="replace"), flush=True)
        return max((abs(code) for code in codes), default=0)


def _print_to(path: Path, config: pytest.Config) -> None:
    """Direct standard output and error to a file, behind pytest's capture of what tests print."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    capture.stop_global_capturing()
    with path.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    capture.start_global_capturing()
    capture.suspend_global_capture()


def _move_cache(config: pytest.Config, number: int) -> None:
    """Have pytest write what it remembers, such as the failed tests, to a directory of this fork."""
    directory = Cache.cache_dir_from_config(config, _ispytest=True)
    config.cache = Cache(directory.with_name(f"{directory.name}-{number}"), config, _ispytest=True)


FORKS: Final = pytest.StashKey[Forks]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", type=Path, required=True, help="an empty directory, the same for all processes")
    parser.addoption("--processes", type=int, default=1, help="so many processes run the tests of this one")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the claimed tests as pytest runs its own; leave errors of the collection to pytest."""
    if session.testsfailed or session.config.option.collectonly:
        return None

    forks = session.config.stash[FORKS] = Forks(session.config.option.claims)
    forks.begin(session.config, session.config.option.processes)
    for item, following in pairwise(chain(claimed(session.items, session.config.option.claims), (None,))):
        assert item is not None  # only the last of a pair is
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Wait for the forks: the exit code is the largest of all processes."""
    if FORKS in session.config.stash:
        session.exitstatus = max(session.exitstatus, session.config.stash[FORKS].wait())
