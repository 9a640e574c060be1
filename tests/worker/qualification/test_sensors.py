"""The GPU's sensors over a management library of our own making, with the real one's names."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from darkroom.worker.observe.gpu_sensors import GpuSensors, Reading, SensorsMissing, reasons_in
from darkroom.worker.qualification.sensors import SensorLog, open_sensors, watching
from tests.worker.nvml import Nvml


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
