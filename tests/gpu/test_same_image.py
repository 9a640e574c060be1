"""The GPU draws what the CPU draws, with every kind of network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.gpu_parts.families import MOST_DEFAULT_ERROR, MOST_FLOAT32_ERROR, compare
from tests.gpu.benches import bench_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux", "wan", "qwen_image", "z_image"])
def test_latents_and_images_of_cpu_and_gpu_agree(tmp_path: Path, family: str) -> None:
    found = compare(bench_in(tmp_path), family)
    assert found["deviation"] > 0.1, "a flat latent compares nothing"
    assert found["float32"]["latent_error"] <= MOST_FLOAT32_ERROR
    assert found["float32"]["image_mean"] <= 1.0 and found["float32"]["image_max"] <= 8.0
    assert found["default"]["latent_error"] <= MOST_DEFAULT_ERROR
    assert found["default"]["image_mean"] <= 8.0
