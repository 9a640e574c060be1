"""A pytest plugin for the quick run: no test that starts a process, one family of models a kind, no costly file.

    python -m pytest -p tests.quick -m "not slow and not gpu"      what `./test.sh quick` runs
    python -m tests.quick COSTS...                                 write the list of costly files, as `./test.sh costs`

Nothing is listed by hand:

- A test is skipped when it, or a fixture of it, starts a process.
- Of tests with a family among their parameters those run whose family is the first of its kind: by the form of its
  latents and by whether it generates images, videos or audio.
- `costly_files.txt` has the files that take more than `COSTLY_SECONDS` of the processor after that. With `--costs FILE`
  those run, too, and the seconds of every file are written.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.registry import families

ROOT: Final = Path(__file__).parents[1]
COSTLY_FILES: Final = Path(__file__).with_name("costly_files.txt")
COSTLY_SECONDS: Final = 1.5
"""Seconds of the processor. What takes more is left out, so that the rest takes less than two minutes on two cores."""

STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
"""Python's audit events of a new process."""

REASON: Final = "starts a process"


class ProcessGuard:
    """Skips the running test when it starts a process, in whichever thread or task."""

    def __init__(self) -> None:
        self._is_on = self._has_started = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_on and event in STARTS:
            self._has_started = True
            pytest.skip(REASON)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._is_on, self._has_started = True, False
        try:
            return (yield)
        finally:
            self._is_on = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Skip a test, too, that met the refusal of a process as an error of its own."""
        report: Any = yield
        if report.failed and self._has_started:
            report.outcome = "skipped"
            report.longrepr = str(item.path), item.location[1] or 0, f"Skipped: {REASON}"
        return report  # type: ignore[no-any-return]


class FileCosts:
    """Counts the seconds of the processor that each file of tests takes, and writes them as JSON at the end.

    A process that the first one forked writes to a file of its own, its id behind the name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first_process = os.getpid()
        self._seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began_seconds = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid.partition("::")[0]] += time.process_time() - began_seconds

    def pytest_sessionfinish(self) -> None:
        process = os.getpid()
        path = self._path
        if process != self._first_process:
            path = path.with_name(f"{path.name}-{process}")
        path.write_text(json.dumps(self._seconds), "utf-8")


def first_of_each_kind() -> frozenset[str]:
    """Return the names of the families that stand for their kind."""
    first: dict[tuple[object, ...], str] = {}
    for family in families():
        latents, default = family.latent_format, family.default
        kind = (latents.latent_dimensions, latents.num_rows, default.frames is not None, default.seconds is not None)
        first.setdefault(kind, family.name)
    return frozenset(first.values())


def family_of(item: pytest.Item) -> str | None:
    """Return the name of the family among a test's parameters."""
    call = getattr(item, "callspec", None)
    values = call.params.values() if call is not None else ()
    return next((value.name for value in values if isinstance(value, ModelFamily)), None)


def costly_files(path: Path = COSTLY_FILES) -> frozenset[str]:
    """Return the files on the list, by their paths in the repository."""
    lines = path.read_text("utf-8").splitlines()
    return frozenset(line.split()[1] for line in lines if not line.startswith("#"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="run costly files as well, and write what each file takes")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessGuard())
    if config.option.costs is not None:
        config.pluginmanager.register(FileCosts(config.option.costs))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a costly file out without importing it."""
    if config.option.costs is not None or not collection_path.is_relative_to(ROOT):
        return None
    return collection_path.relative_to(ROOT).as_posix() in COSTLY or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of families that do not stand for their kind."""
    first = first_of_each_kind()
    stands = {item: (name := family_of(item)) is None or name in first for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not stands[item]])
    items[:] = [item for item in items if stands[item]]


COSTLY: Final = costly_files()


def write_costly_files(costs: Iterable[Path], path: Path = COSTLY_FILES) -> None:
    """Write the list from what the processes of a run have counted."""
    seconds: dict[str, float] = {}
    for part in costs:  # a file is run by one process
        seconds |= json.loads(part.read_text("utf-8"))
    lines = [f"{taken:.1f} {file}" for file, taken in sorted(seconds.items()) if taken > COSTLY_SECONDS]
    path.write_text("\n".join(["# Seconds of the processor; written by `./test.sh costs`.", *lines, ""]), "utf-8")


if __name__ == "__main__":
    write_costly_files(Path(name) for name in sys.argv[1:])
