"""Checks of the GPU and its driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from darkroom.worker.doctor.check import Check, failed, good, skipped, warning
from darkroom.worker.observe.gpu_sensors import GpuDriver, GpuName, SensorsMissing

DEV = Path("/dev")
LOCAL_VERSION = re.compile(r"\+cu(\d+)(\d)$")
RUNTIME = "nvidia-cuda-runtime"

ReadGpus = Callable[[], Sequence[GpuName]]
ReadDriver = Callable[[], GpuDriver]


def check_device(*, is_cpu: bool, read_gpus: ReadGpus, dev: Path = DEV) -> Check:
    """Check that the GPUs whose device files are there can be used."""
    if is_cpu:
        return good("device", "CPU, as the settings ask for")
    files = sorted(path.name for path in dev.glob("nvidia[0-9]*"))
    try:
        gpus = read_gpus()
    except SensorsMissing as missing:
        if files:
            return failed(
                "device",
                f"{len(files)} GPU device files, and the driver's library does not work: {missing}",
                "Reboot after a driver update; in a container use `--gpus all` and the NVIDIA container toolkit",
            )
        return warning(
            "device",
            "No GPU: the engine runs on the CPU",
            "On a GPU machine start the container with `--gpus all`; otherwise set CPU=true, which says it is meant so",
        )
    if not gpus:
        return failed("device", "The driver lists no GPU", "Look at `nvidia-smi` and the kernel's log for lost GPUs")
    return good("device", "; ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus))


def check_driver(*, is_cpu: bool, read_driver: ReadDriver, torch_cuda: str | None) -> Check:
    """Check that the driver supports the CUDA version that torch was built for."""
    if is_cpu:
        return skipped("driver", "Not needed on the CPU")
    try:
        driver = read_driver()
    except SensorsMissing as missing:
        return skipped("driver", f"No driver to ask: {missing}")
    shown = f"driver {driver.version}, CUDA {driver.cuda_version}"
    if torch_cuda is None:
        return failed(
            "driver",
            f"{shown}; the installed torch is built for the CPU",
            "Install torch for CUDA: https://pytorch.org/get-started/locally/",
        )
    if int(driver.cuda_version.split(".")[0]) < int(torch_cuda.split(".")[0]):
        return failed(
            "driver",
            f"{shown}; the installed torch needs CUDA {torch_cuda}",
            "Update the driver, or install a torch that is built for the driver's CUDA version",
        )
    return good("driver", f"{shown}; torch is built for CUDA {torch_cuda}")


def cuda_of_torch() -> str | None:
    """Return the CUDA version that the installed torch was built for, without importing it; None for the CPU's."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    found = LOCAL_VERSION.search(version)
    if found is not None:
        return f"{found[1]}.{found[2]}"
    if "+" in version:
        return None
    for requirement in metadata.requires("torch") or ():
        name = re.match(rf"{RUNTIME}(-cu\d+)?\s*==\s*(\d+\.\d+)", requirement)
        if name is not None:
            return name[2]
    return None
