"""The fixed computation and the figures of the probe, on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.probes import device as device_probe
from darkroom.engine.probes.device import (
    CPU_AMOUNT,
    FIXED_CHECKSUM,
    checksum,
    find_wrong_product,
    fixed_matrices,
    measure,
)
from darkroom.engine.probes.disk import measure_disk


def test_the_known_checksum_is_that_of_the_product_in_whole_numbers() -> None:
    first, second = fixed_matrices()
    product = first.double() @ second.double()
    rows = slice(500, 532)  # of all of them integers take seconds
    assert torch.equal(product[rows].long(), first[rows] @ second)
    assert checksum(product) == FIXED_CHECKSUM


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_type_gives_the_same_product(dtype: torch.dtype) -> None:
    first, second = fixed_matrices()
    rows = slice(0, 64) if dtype is torch.float16 else slice(None)  # which a processor multiplies slowly
    product = first.double() @ second.double()
    assert torch.equal((first[rows].to(dtype) @ second.to(dtype)).double(), product[rows])


@pytest.mark.parametrize("wrong", [1.0, -3.0, float("nan"), float("inf")])
def test_a_single_wrong_number_shows(wrong: float) -> None:
    first, second = fixed_matrices()
    product = first.float() @ second.float()
    product[517, 3] += wrong
    assert checksum(product) != FIXED_CHECKSUM


def test_two_rows_that_changed_places_show() -> None:
    first, second = fixed_matrices()
    product = first.float() @ second.float()
    product[[10, 20]] = product[[20, 10]]
    assert checksum(product) != FIXED_CHECKSUM


def test_a_device_that_computes_wrongly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_probe, "FIXED_CHECKSUM", 7)
    assert "float32 has checksum" in str(find_wrong_product("cpu"))


def test_a_healthy_processor_has_figures_and_no_fault() -> None:
    figures = measure("cpu")
    assert figures.fault is None
    assert 0.001 < figures.matrix_tflops < 100
    assert 0.1 < figures.memory_gb_per_second < 10_000
    assert figures.host_to_device_gb_per_second is None


def test_the_pattern_that_is_copied_uses_all_bits() -> None:
    pattern = device_probe.pattern(CPU_AMOUNT.copied_bytes, "cpu")
    assert len(torch.unique_consecutive(pattern.sort().values)) == len(pattern)
    assert int(pattern.min()) < -(2**30) and int(pattern.max()) > 2**30


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"a")
    (tmp_path / "large").write_bytes(bytes(9 * 1024**2))
    figure = measure_disk([tmp_path / "small", tmp_path / "large", tmp_path / "missing"])
    assert figure is not None
    assert (figure.file, figure.read_bytes) == ("large", 9 * 1024**2) and figure.gb_per_second > 0


def test_without_a_file_there_is_no_figure(tmp_path: Path) -> None:
    assert measure_disk([tmp_path / "missing"]) is None
