"""The loading benchmark runs whole on a tiny checkpoint and compares what it promises to compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.model_loading import WAYS, measure_calls, measure_loads
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.mark.slow
def test_every_way_of_loading_is_measured_beside_a_plain_read(tmp_path: Path) -> None:
    report = measure_loads(make_tiny_checkpoint(tmp_path), 1)
    assert list(report["gb_per_s"]) == list(WAYS) and all(speed > 0 for speed in report["gb_per_s"].values())
    assert report["share_of_plain_read"]["plain_read"] == 1.0


def test_calls_are_compared_with_those_of_a_plain_module() -> None:
    report = measure_calls(num_calls=1)
    assert report["ratio"] > 0 and report["plain_ms"] > 0
