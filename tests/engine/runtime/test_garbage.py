"""Python's collector in the engine's process, and that runs leave it little to do."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.runtime.cache.none import NoCache
from darkroom.engine.runtime.garbage import COLLECT_EVERY_SECONDS, THRESHOLDS, GarbageCollection
from tests.contract.graph import declared
from tests.engine.runtime.runs import Bench

VALUE = Annotated[Any, Socket("VALUE")]


class Value:
    """Something that would take much memory."""


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)
    gc.freeze()  # all tests were (`tests/conftest.py`): each later collection of this process would walk them


def test_taking_over_and_giving_back(thresholds: tuple[int, int, int]) -> None:
    garbage = GarbageCollection()
    garbage.take_over()
    assert gc.get_threshold() == THRESHOLDS and gc.get_freeze_count() > 0
    garbage.take_over()
    garbage.give_back()
    assert gc.get_threshold() == thresholds and gc.get_freeze_count() == 0


def test_a_collection_follows_a_run_when_the_last_is_long_ago(thresholds: tuple[int, int, int]) -> None:
    moment = 0.0
    garbage = GarbageCollection(lambda: moment)

    def cycle() -> weakref.ref[Value]:
        value: Any = Value()
        value.myself = value
        return weakref.ref(value)

    unowned = cycle()
    moment = COLLECT_EVERY_SECONDS
    garbage.after_run()
    assert unowned() is not None  # somebody else's process
    garbage.take_over()
    soon = cycle()
    garbage.after_run()
    assert soon() is not None
    moment += COLLECT_EVERY_SECONDS
    garbage.after_run()
    assert soon() is None
    garbage.give_back()


@pytest.mark.parametrize("fails", [False, True])
def test_a_runs_values_go_with_it_without_a_collection(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        logging.getLogger("darkroom.engine.runtime.run_report"), "disabled", True
    )  # pytest keeps what is logged
    made: list[weakref.ref[Value]] = []

    @node("Make", category="test")
    def make(context: NodeContext) -> VALUE:
        value = Value()
        made.append(weakref.ref(value))
        context.report_progress(1, 1)
        return value

    @node("Look", category="test", is_output=True)
    def look(context: NodeContext, *, value: VALUE) -> NodeOutput:
        if fails:
            raise ValueError
        return NodeOutput({})

    bench = Bench(tmp_path, (make, look), NoCache())
    gc.collect()
    gc.disable()
    try:
        bench.run({"1": declared.node("Make"), "2": declared.node("Look", value=["1", 0])}, "2")
        bench.results.clear()
        assert [value() for value in made] == [None]
    finally:
        gc.enable()
