"""Readings of a GPU's sensors before, during and after the benchmark's runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

import structlog

from darkroom.worker.observe.gpu_sensors import GpuSensors, Reading, SensorsMissing

LOOK_SECONDS = 0.25

log = structlog.get_logger("sensors")

HARMFUL = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
"""Harmful reasons: heat and failing power supplies. A power cap is normal under load, and so is idling."""


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
