"""The probe on a device: healthy, and of the order of magnitude that any card has."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.memory.device import identity
from darkroom.engine.probes.device import FIXED_CHECKSUM, checksum, fixed_matrices, measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_the_fixed_product_is_exact_in_every_type(dtype: torch.dtype) -> None:
    first, second = (matrix.to("cuda", dtype) for matrix in fixed_matrices())
    assert checksum((first @ second).cpu()) == FIXED_CHECKSUM


def test_a_healthy_card_has_figures_and_no_fault() -> None:
    figures = measure("cuda:0")
    assert figures.fault is None and figures.seconds < 5
    assert 1 < figures.matrix_tflops < 10_000
    assert 50 < figures.memory_gb_per_second < 50_000
    assert figures.host_to_device_gb_per_second is not None and 0.5 < figures.host_to_device_gb_per_second < 1000


def test_says_which_card_it_is() -> None:
    found = identity("cuda:0")
    assert found.kind == "cuda" and found.cuda and found.uuid and found.name in torch.cuda.get_device_name(0)
