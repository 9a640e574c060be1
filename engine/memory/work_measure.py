"""Measurement of the working memory that models take, against what was estimated."""

from __future__ import annotations

from darkroom.engine.memory.calibration import Calibration
from darkroom.engine.memory.resident import DeviceMemory


class WorkMeasure:
    """Peaks of a device's memory, by which estimates of working memory are corrected for each role of models."""

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._peak_bytes = 0  # the highest peak before the device's own count was last reset
        self._begun_bytes = 0  # the largest work begun in the outermost use that is open

    def corrected(self, role: str, working_bytes: int) -> int:
        """Return an estimate, corrected by what was measured before."""
        return self._calibration.corrected(role, working_bytes)

    def begin_work(self, working_bytes: int) -> None:
        """Record the estimate of work that begins within a use."""
        self._begun_bytes = max(self._begun_bytes, working_bytes)

    def begin_use(self, device: DeviceMemory) -> int | None:
        """Reset the peak count and return what is allocated now; None where the device does not count."""
        self._begun_bytes = 0
        self._peak_bytes = self.peak_bytes(device) or 0
        device.reset_peak()
        return device.allocated_bytes()

    def end_use(self, device: DeviceMemory, role: str, estimated_bytes: int, before_bytes: int) -> None:
        """Learn from a use that began with `before_bytes` allocated, in which nothing was loaded."""
        estimated_bytes = max(estimated_bytes, self._begun_bytes)
        self._calibration.measured(role, estimated_bytes, (device.peak_bytes() or 0) - before_bytes)

    def peak_bytes(self, device: DeviceMemory) -> int | None:
        """Return the most that was allocated at once on the device since the start; None where it does not count."""
        peak_bytes = device.peak_bytes()
        return None if peak_bytes is None else max(peak_bytes, self._peak_bytes)
