"""GPUs of a machine, by variable and driver, and so the number of engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.engines.gpus import assign_gpus, find_gpus, parse_ids, visible_entries

TWO = """GPU 0: NVIDIA H200 (UUID: GPU-aaaa)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb)
"""
CUT = """GPU 0: NVIDIA H200 (UUID: GPU-aaaa)
  MIG 1g.18gb     Device  0: (UUID: MIG-1111)
  MIG 1g.18gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb)
"""


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("0,2", ["0", "2"]), ("", []), ("-1", []), ("1,-1,0", ["1"]), ("GPU-a, MIG-b", ["GPU-a", "MIG-b"])],
)
def test_the_variable_is_read_as_cuda_reads_it(variable: str, expected: list[str]) -> None:
    assert visible_entries(variable) == expected
    assert find_gpus({"CUDA_VISIBLE_DEVICES": variable}) == expected


def test_without_the_variable_the_devices_count_and_one_needs_no_driver(tmp_path: Path) -> None:
    assert find_gpus({}, tmp_path) == []
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert find_gpus({}, tmp_path) == ["0"]


def test_the_drivers_list_names_each_gpu_or_the_parts_it_is_cut_into() -> None:
    assert parse_ids(TWO) == ["GPU-aaaa", "GPU-bbbb"]
    assert parse_ids(CUT) == ["MIG-1111", "MIG-2222", "GPU-bbbb"]


def test_every_gpu_gets_an_engine_unless_a_number_is_asked_for() -> None:
    assert assign_gpus(["a", "b"], None) == ["a", "b"]
    assert assign_gpus(["a", "b"], 3) == ["a", "b", "a"]
    assert assign_gpus(["a", "b"], 1) == [None] == assign_gpus(["a"], None) == assign_gpus([], None)
    assert assign_gpus([], 2) == [None, None]
