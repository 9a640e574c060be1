"""The ways in which the GPU benchmark samples name strategies that there are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmark.gpu_parts.bench import Bench, Report
from benchmark.gpu_parts.sampling import GRAPHS, STAND_IN, usable_strategies, usual_ways
from darkroom.contract.quality import STRATEGIES
from darkroom.engine.tuning.registry import make_strategies


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    report = Report(tmp_path / "part.json", {})
    return Bench("cpu", True, time.monotonic() + 60, tmp_path, tmp_path, None, report)


def test_every_way_names_strategies_of_this_version(bench: Bench) -> None:
    ways = usual_ways(bench)
    assert list(ways) == ["plain", STAND_IN, "all"]
    assert {name for names in ways.values() for name in names} <= set(STRATEGIES)
    assert set(GRAPHS) <= set(STRATEGIES)


def test_what_stands_for_graphs_is_as_exact_and_everywhere(bench: Bench) -> None:
    assert STAND_IN in usable_strategies(bench)
    assert make_strategies(None)[STAND_IN].quality == make_strategies(None)[GRAPHS[0]].quality
