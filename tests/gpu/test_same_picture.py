"""The GPU draws what the CPU draws."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.gpu import TOY, Bench, compare_pictures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_pictures_of_cpu_and_gpu_agree(tmp_path: Path) -> None:
    difference = compare_pictures(Bench("cuda", TOY, tmp_path))
    assert difference["float32_mean"] <= 1.0
    assert difference["float32_max"] <= 8.0
    assert difference["default_mean"] <= 4.0
