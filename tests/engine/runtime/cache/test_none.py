"""`--cache-none`: a result is gone as soon as everything that takes it has run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.events import NodeFinished, NodeStarted
from darkroom.engine.runtime.cache.classic import ClassicCache
from darkroom.engine.runtime.cache.none import NoCache
from tests.contract.graph.declared import node
from tests.engine.runtime.runs import Bench
from tests.engine.runtime.small_nodes import Calls, small_nodes

CHAIN: dict[str, Any] = {
    "0": node("Number", value=1),
    **{str(index): node("Add", a=[str(index - 1), 0], b=["0", 0]) for index in range(1, 20)},
    "show": node("Show", a=["19", 0]),
}


def most_kept(bench: Bench, prompt: dict[str, Any], *outputs: str) -> int:
    """Return the largest number of results that are there at once."""
    most = 0

    def count(event: Any) -> None:
        nonlocal most
        if isinstance(event, (NodeStarted, NodeFinished)):
            most = max(most, len(bench.results))

    assert bench.run(prompt, *outputs, on_event=count).status == "success"
    return most


def test_results_go_as_soon_as_their_consumers_are_done(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small_nodes(Calls()), NoCache())
    assert most_kept(bench, CHAIN, "show") <= 3
    assert len(bench.results) == 0
    assert bench.run(CHAIN, "show").outputs == {"show": {"number": [20]}}


def test_the_classic_cache_keeps_them_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small_nodes(Calls()), ClassicCache())
    most_kept(bench, CHAIN, "show")
    assert len(bench.results) == len(CHAIN)


def test_what_a_lazy_input_may_still_want_stays(tmp_path: Path) -> None:
    calls = Calls()
    prompt = {
        "1": node("Number", value=5),
        "2": node("Show", a=["1", 0]),
        "3": node("Choose", pick=1, first=["1", 0], second=["1", 0]),
        "4": node("Show", a=["3", 0]),
    }
    result = Bench(tmp_path, small_nodes(calls), NoCache()).run(prompt, "2", "4")
    assert result.outputs["4"] == {"number": [5]} and calls.count("1") == 1


@pytest.mark.parametrize("graph", [node("Sum", values="1 2 3"), node("Countdown", count=50)])
def test_expansions_run_each_node_once(tmp_path: Path, graph: dict[str, Any]) -> None:
    calls = Calls()
    bench = Bench(tmp_path, small_nodes(calls), NoCache())
    assert bench.run({"1": graph, "2": node("Show", a=["1", 0])}, "2").status == "success"
    assert len(calls) == len(set(calls)) and len(bench.results) == 0
