"""GPU sensors through NVIDIA's management library: clocks, temperature, power and clock throttling reasons.

The library is imported, and the driver's part of it loaded, with the first reading. Where either is missing, or the GPU
is not one of this machine's, there is a reason in place of readings.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog

LOOK_SECONDS = 0.25

log = structlog.get_logger("sensors")

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

HARMFUL = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
"""Harmful reasons: heat and failing power supplies. A power cap is normal under load, and so is idling."""


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


@dataclass(slots=True)
class SensorLog:
    """Readings before, during and after a run; `missing` is the reason why there are none."""

    driver: str | None = None
    missing: str | None = None
    before: Reading | None = None
    during: list[Reading] = field(default_factory=list)
    after: Reading | None = None

    @property
    def harmful_reasons(self) -> tuple[str, ...]:
        """Throttling reasons during the runs that indicate a fault."""
        seen = {reason for reading in (*self.during, self.after) if reading for reason in reading.throttle_reasons}
        return tuple(sorted(seen & HARMFUL))

    def as_json(self) -> dict[str, object] | None:
        if self.before is None or self.after is None:
            return None
        return {"before": asdict(self.before), "during": _summary(self.during), "after": asdict(self.after)}


def _summary(readings: list[Reading]) -> dict[str, object]:
    def extreme(choose: Callable[[list[float]], float], name: str) -> float | None:
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        return choose(values) if values else None

    return {
        "num_readings": len(readings),
        "sm_clock_mhz_min": extreme(min, "sm_clock_mhz"),
        "sm_clock_mhz_max": extreme(max, "sm_clock_mhz"),
        "temperature_c_max": extreme(max, "temperature_c"),
        "power_w_max": extreme(max, "power_w"),
        "throttle_reasons": sorted({reason for reading in readings for reason in reading.throttle_reasons}),
    }


def reasons_in(bits: int) -> tuple[str, ...]:
    """Return the names of the set bits, bits of no known name in hexadecimal."""
    known = tuple(name for bit, name in REASONS if bits & bit)
    rest = bits & ~sum(bit for bit, _ in REASONS)
    return (*known, hex(rest)) if rest else known


class GpuSensors:
    """Sensors of one GPU of this machine. Construction raises SensorsMissing where it cannot be read."""

    def __init__(self, uuid: str | None, product: str) -> None:
        try:
            import pynvml  # noqa: PLC0415 - 6,000 lines that a worker without a GPU never needs
        except ImportError:
            raise SensorsMissing("The package nvidia-ml-py is not installed") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = self._find(uuid, product)
            self.driver = _text(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
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

    def _read_or_none(self, ask: Callable[[], int]) -> int | None:
        try:
            return ask()
        except self._nvml.NVMLError:  # cards differ in their sensors
            return None


class SensorsMissing(Exception):
    """Error with the reason why there are no readings."""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def open_sensors(
    *, is_gpu: bool, is_local: bool, uuid: str | None, product: str
) -> tuple[GpuSensors | None, str | None]:
    """Open the sensors, or return why there are none. `is_local`: the engine runs on this machine."""
    if not is_gpu:
        return None, "The engine runs on a CPU"
    if not is_local:
        return None, "The engine is on another machine"
    try:
        return GpuSensors(uuid, product), None
    except SensorsMissing as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the driver's library: no benchmark fails for lack of sensors
        log.exception("GPU sensors not opened")
        return None, f"NVML: {type(error).__name__}: {error}"


@asynccontextmanager
async def watching(sensors: GpuSensors | None, missing: str | None) -> AsyncIterator[SensorLog]:
    """Read before the block, every quarter of a second in it, and at its end, while the card is still warm."""
    seen = SensorLog(driver=sensors.driver if sensors else None, missing=missing)
    if sensors is None:
        yield seen
        return
    seen.before = await _read(sensors, seen)
    looking = asyncio.create_task(_look(sensors, seen))
    try:
        yield seen
        seen.after = await _read(sensors, seen)
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


async def _look(sensors: GpuSensors, seen: SensorLog) -> None:
    while seen.missing is None:
        await asyncio.sleep(LOOK_SECONDS)
        reading = await _read(sensors, seen)
        if reading is not None:
            seen.during.append(reading)


async def _read(sensors: GpuSensors, seen: SensorLog) -> Reading | None:
    """Read the sensors; return None, and record the reason, when the driver's library fails unexpectedly."""
    try:
        return await asyncio.to_thread(sensors.read)
    except Exception as error:  # noqa: BLE001 - the driver's library: no benchmark fails for lack of sensors
        log.exception("GPU sensors unreadable")
        seen.missing = f"NVML: {type(error).__name__}: {error}"
        return None
