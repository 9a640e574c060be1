"""CUDA graphs on a real card: equal bits, and torch as it was, also after a capture that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.gpu_parts.bench import run_cases
from benchmark.gpu_parts.capture import FAILED_CAPTURE, KEPT
from tests.gpu.benches import bench_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SECONDS = 100.0

# Each in a process of its own: a failed capture may leave that of the tests in any state.


@pytest.mark.parametrize("family", ["sd15", "sdxl", "sd3", "flux", "wan", "qwen_image", "z_image", *KEPT])
def test_a_graph_has_the_plain_paths_bits_and_leaves_torch_as_it_was(tmp_path: Path, family: str) -> None:
    (case,) = run_cases(bench_in(tmp_path), "capture", [family], at_once=1, each_seconds=SECONDS)
    assert case.reason is None and case.failures == {}
    for name, way in case.figures["ways"].items():
        assert way["error"] == 0.0, name
        assert way["unsound"] == [], name


@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux", "wan"])
def test_the_networks_that_are_used_most_are_captured(tmp_path: Path, family: str) -> None:
    (case,) = run_cases(bench_in(tmp_path), "capture", [family], at_once=1, each_seconds=SECONDS)
    assert all(way["is_captured"] for way in case.figures["ways"].values()), case.figures


def test_captures_that_fail_leave_stream_allocator_and_generator_as_they_were(tmp_path: Path) -> None:
    (case,) = run_cases(bench_in(tmp_path), "capture", [FAILED_CAPTURE], at_once=1, each_seconds=SECONDS)
    assert case.reason is None and case.failures == {}
    assert all(found["outcome"].startswith("refused") for found in case.figures["failed"].values())
