"""A management library of our own making, with the real one's names."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace


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

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        self.asked_uuid = uuid
        return 0

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return ("GPU-a10", "GPU-l4")[handle]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=42, memory=7)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=24 << 30, used=6 << 30)

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
