"""Running out of a card's memory, by torch's own limit: the run ends, alike, and the memory comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.gpu_parts.memory import OOM_SHARES, run_out_of_memory
from tests.gpu.benches import bench_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_run_that_has_too_little_memory_ends_alike_and_gives_it_back(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, is_toy=False)
    run_out_of_memory(bench)
    assert bench.report.failures == {}
    limits = bench.report.figures["limits"]
    assert len(limits) == len(OOM_SHARES)
    assert any(found["relief"] for found in limits.values()), "no limit was too small"
