"""The GPU's sensors over a management library of our own making, with the real one's names."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from worker.observe.gpu_sensors import GpuSensors, Reading, SensorsMissing, reasons_in
from worker.qualification.sensors import SensorLog, open_sensors, watching


class Nvml(ModuleType):
    """Two cards; the second one's fan of figures lacks power, as some cards do."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.has_driver, self.reasons = True, 0x4
        self.asked_uuid: str | None = None

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        self.asked_uuid = uuid
        return 0

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return (b"NVIDIA A10", b"NVIDIA L4")[handle]

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1500 if kind == 1 else 7000

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return 2000

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        return 70

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError("Not Supported")
        return 250_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 300_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.reasons


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def opened(**changes: Any) -> tuple[GpuSensors | None, str | None]:
    given: dict[str, Any] = {"is_gpu": True, "is_local": True, "uuid": None, "product": "NVIDIA L4"}
    return open_sensors(**(given | changes))


def test_the_real_library_has_every_name_that_is_used() -> None:
    import pynvml

    names = [name for name in vars(Nvml) if name.startswith(("nvml", "NVML"))]
    assert len(names) > 10 and not [name for name in names if not hasattr(pynvml, name)]


def test_the_card_is_found_by_its_id_and_else_by_its_name(nvml: Nvml) -> None:
    sensors, _ = opened(uuid="12-34")
    assert sensors is not None and nvml.asked_uuid == "GPU-12-34"
    sensors, _ = opened()
    assert sensors is not None and sensors.read().power_w is None  # the second card


def test_a_reading_is_in_plain_units(nvml: Nvml) -> None:
    sensors, _ = opened(uuid="1")
    assert sensors is not None and sensors.driver == "580.65"
    assert sensors.read() == Reading(1500, 7000, 2000, 70, 250.0, 300.0, ("sw_power_cap",))


def test_where_there_is_nothing_to_read_the_reason_is_said(nvml: Nvml) -> None:
    assert opened(is_gpu=False) == (None, "The engine runs on a CPU")
    assert opened(is_local=False) == (None, "The engine is on another machine")
    assert opened(product="NVIDIA H200") == (None, "No GPU of this machine is called NVIDIA H200")
    nvml.has_driver = False
    assert opened() == (None, "NVML: Driver Not Loaded")


def test_on_a_machine_without_a_driver_the_real_library_says_so() -> None:
    try:
        GpuSensors(None, "NVIDIA H200")
    except SensorsMissing as error:
        assert str(error)


def test_bits_have_names() -> None:
    assert reasons_in(0x40 | 0x1) == ("gpu_idle", "hw_thermal_slowdown")
    assert reasons_in(0x8000) == ("0x8000",) and reasons_in(0) == ()


async def test_what_held_the_clocks_back_while_it_ran_is_reported_and_a_power_cap_is_no_harm(nvml: Nvml) -> None:
    sensors, missing = opened(uuid="1")
    async with watching(sensors, missing) as log:
        nvml.reasons = 0x40
    assert log.harmful_reasons == ("hw_thermal_slowdown",)
    told: Any = log.as_json()
    assert told["before"]["throttle_reasons"] == ("sw_power_cap",) and told["after"]["temperature_c"] == 70


async def test_a_library_that_breaks_is_a_reason_and_no_end(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    sensors, missing = opened(uuid="1")
    monkeypatch.setattr(nvml, "nvmlDeviceGetTemperature", lambda *_: 1 / 0)
    async with watching(sensors, missing) as log:
        pass
    assert "ZeroDivisionError" in str(log.missing) and log.as_json() is None
    monkeypatch.setattr(nvml, "nvmlInit", lambda: 1 / 0)
    assert opened()[0] is None and "ZeroDivisionError" in str(opened()[1])


async def test_without_sensors_the_log_is_empty_and_says_why() -> None:
    async with watching(None, "The engine runs on a CPU") as log:
        pass
    assert log == SensorLog(missing="The engine runs on a CPU") and log.as_json() is None
