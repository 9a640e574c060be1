"""Checks of GPU and driver, over a management library of our own making."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.doctor.check import Status
from darkroom.worker.doctor.device import check_device, check_driver, cuda_of_torch
from darkroom.worker.observe.gpu_sensors import GpuDriver, GpuName, SensorsMissing

CARD = GpuName(0, "GPU-1", "NVIDIA L4")


def no_driver() -> list[GpuName]:
    raise SensorsMissing("NVML: Driver Not Loaded")


def test_cards_are_named(tmp_path: Path) -> None:
    check = check_device(is_cpu=False, read_gpus=lambda: [CARD], dev=tmp_path)
    assert (check.status, check.detail) == (Status.GOOD, "0: NVIDIA L4")


def test_no_gpu_is_a_warning_unless_the_cpu_is_asked_for(tmp_path: Path) -> None:
    assert check_device(is_cpu=False, read_gpus=no_driver, dev=tmp_path).status is Status.WARNING
    assert check_device(is_cpu=True, read_gpus=no_driver, dev=tmp_path).status is Status.GOOD


def test_a_card_whose_driver_does_not_work_is_a_failure_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    check = check_device(is_cpu=False, read_gpus=no_driver, dev=tmp_path)
    assert check.status is Status.FAILED and "container toolkit" in check.remedy


@pytest.mark.parametrize(
    ("torch_cuda", "status", "word"),
    [
        ("12.8", Status.GOOD, "12.8"),
        ("13.0", Status.GOOD, "13.0"),
        ("14.1", Status.FAILED, "Update the driver"),
        (None, Status.FAILED, "Install torch for CUDA"),
    ],
)
def test_the_driver_has_to_support_the_cuda_of_torch(torch_cuda: str | None, status: Status, word: str) -> None:
    check = check_driver(is_cpu=False, read_driver=lambda: GpuDriver("580.65", "13.0"), torch_cuda=torch_cuda)
    assert check.status is status and word in check.detail + check.remedy


def test_the_cuda_of_torch_is_read_from_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, expected in (("2.9.0+cu130", "13.0"), ("2.8.0+cu128", "12.8"), ("2.13.0+cpu", None)):
        monkeypatch.setattr("darkroom.worker.doctor.device.metadata.version", lambda _, found=version: found)
        assert cuda_of_torch() == expected
    needed = ["numpy", 'nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"']
    monkeypatch.setattr("darkroom.worker.doctor.device.metadata.version", lambda _: "2.9.0")
    monkeypatch.setattr("darkroom.worker.doctor.device.metadata.requires", lambda _: needed)
    assert cuda_of_torch() == "12.8"
