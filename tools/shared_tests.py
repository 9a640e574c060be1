"""A pytest plugin by which several pytest processes share one queue of tests.

    python -m pytest -p tools.shared_tests --claims=DIRECTORY

Each process collects all tests and runs those that it claims, a file at a time, until none is left. So all of them end
together, however long a file takes and however fast the machine is. A folder whose tests share costly fixtures of the
session is claimed whole, and first, since it takes longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import pytest

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", type=Path, required=True, help="an empty directory, the same for all processes")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the claimed tests as pytest runs its own; leave errors of the collection to pytest."""
    if session.testsfailed or session.config.option.collectonly:
        return None

    for item, following in pairwise(chain(claimed(session.items, session.config.option.claims), (None,))):
        assert item is not None  # only the last of a pair is
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True
