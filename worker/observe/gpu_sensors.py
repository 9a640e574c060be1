"""GPU sensors through NVIDIA's management library: clocks, temperature, power, utilisation and memory.

The library is imported, and the driver's part of it loaded, with the first reading. Where either is missing, or the GPU
is not one of this machine's, there is a reason in place of readings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REASONS: tuple[tuple[int, str], ...] = (
    (0x0001, "gpu_idle"),
    (0x0002, "application_clocks"),
    (0x0004, "sw_power_cap"),
    (0x0008, "hw_slowdown"),
    (0x0010, "sync_boost"),
    (0x0020, "sw_thermal_slowdown"),
    (0x0040, "hw_thermal_slowdown"),
    (0x0080, "hw_power_brake"),
    (0x0100, "display_clocks"),
)
"""Bits of NVML's clock event reasons."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the sensors. Values that the card does not report are None."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None
    throttle_reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Load of a GPU. Values that the card does not report are None; the ratio is 0..1."""

    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


def reasons_in(bits: int) -> tuple[str, ...]:
    """Return the names of the set bits, bits of no known name in hexadecimal."""
    known = tuple(name for bit, name in REASONS if bits & bit)
    rest = bits & ~sum(bit for bit, _ in REASONS)
    return (*known, hex(rest)) if rest else known


class SensorsMissing(Exception):
    """Error with the reason why there are no readings."""


class GpuSensors:
    """Sensors of one GPU of this machine, by its UUID, else by its name.

    Construction raises SensorsMissing where it cannot be read.
    """

    def __init__(self, uuid: str | None, product: str) -> None:
        self._nvml: Any = _library()
        try:
            self._handle = self._find(uuid, product)
            self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError as error:
            raise SensorsMissing(f"NVML: {error}") from None

    def _find(self, uuid: str | None, product: str) -> object:
        nvml = self._nvml
        if uuid is not None:
            return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        for handle in handles:
            if _text(nvml.nvmlDeviceGetName(handle)) == product:
                return handle
        raise SensorsMissing(f"No GPU of this machine is called {product}")

    def read(self) -> Reading:
        nvml, handle = self._nvml, self._handle
        bits = self._read_or_none(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        power, limit = (
            self._read_or_none(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            self._read_or_none(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
        )
        return Reading(
            sm_clock_mhz=self._read_or_none(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=self._read_or_none(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            max_sm_clock_mhz=self._read_or_none(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            temperature_c=self._read_or_none(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            throttle_reasons=reasons_in(bits or 0),
        )

    def usage(self) -> Usage:
        nvml, handle = self._nvml, self._handle
        percent = self._read_or_none(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return Usage(
            utilization_ratio=None if percent is None else percent / 100,
            memory_used_bytes=self._read_or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            memory_total_bytes=self._read_or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        )

    def _read_or_none(self, ask: Callable[[], int]) -> int | None:
        try:
            return ask()
        except self._nvml.NVMLError:  # cards differ in their sensors
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _library() -> Any:
    """Return NVML, initialised. Raises SensorsMissing."""
    try:
        import pynvml  # noqa: PLC0415 - 6,000 lines that a worker without a GPU never needs
    except ImportError:
        raise SensorsMissing("The package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SensorsMissing(f"NVML: {error}") from None
    return pynvml


@dataclass(frozen=True, slots=True)
class GpuName:
    """Identity of a GPU of this machine."""

    index: int
    uuid: str
    name: str


def list_gpus() -> list[GpuName]:
    """Return the GPUs of this machine that NVML lists. Raises SensorsMissing."""
    nvml = _library()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [
            GpuName(index, _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)))
            for index, handle in enumerate(handles)
        ]
    except nvml.NVMLError as error:
        raise SensorsMissing(f"NVML: {error}") from None


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """Version of the driver, and of the newest CUDA that it supports."""

    version: str
    cuda_version: str


def read_driver() -> GpuDriver:
    """Return the versions of the driver. Raises SensorsMissing."""
    nvml = _library()
    try:
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
        return GpuDriver(_text(nvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}")
    except nvml.NVMLError as error:
        raise SensorsMissing(f"NVML: {error}") from None
