"""The loading benchmark runs whole on a tiny checkpoint and compares what it promises to compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.model_loading import measure_calls, measure_loads, ways_of
from benchmark.other_readers import readers_for
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.mark.slow
def test_every_way_of_loading_is_measured_beside_a_plain_read(tmp_path: Path) -> None:
    report = measure_loads(make_tiny_checkpoint(tmp_path), 1)
    assert list(report["gb_per_s"]) == list(ways_of(is_cold=False)) and all(
        speed > 0 for speed in report["gb_per_s"].values()
    )
    assert report["share_of_plain_read"]["plain_read"] == 1.0


def test_cold_loads_end_with_the_turn_in_which_their_time_is_over(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    write_random_checkpoint(path)
    report = measure_loads(path, 3, is_cold=True, most_seconds=0)
    assert list(report["gb_per_s"]) == list(ways_of(is_cold=True)) and report["turns"] == 1


@pytest.mark.skipif(not readers_for("cpu"), reason="needs the extra `readers`")
def test_readers_of_others_read_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    write_random_checkpoint(path)
    report = measure_loads(path, 1)
    assert report["gb_per_s"].keys() >= readers_for("cpu").keys()


def test_calls_are_compared_with_those_of_a_plain_module() -> None:
    report = measure_calls(num_calls=1)
    assert report["ratio"] > 0 and report["plain_ms"] > 0
