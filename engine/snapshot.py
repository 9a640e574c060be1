"""Freezing of an engine for a snapshot of its process, and thawing in each copy."""

from __future__ import annotations

import threading
from collections.abc import Callable

from darkroom.engine.housekeeping import Housekeeping
from darkroom.engine.measurements import Measurements
from darkroom.engine.memory.device import DeviceIdentity
from darkroom.engine.memory.random_state import reseed
from darkroom.engine.runs import Runs


class Snapshot:
    """State of an engine between `freeze` and `thaw`, and the functions to call at both."""

    def __init__(self, runs: Runs, housekeeping: Housekeeping, measurements: Measurements) -> None:
        self._runs = runs
        self._housekeeping = housekeeping
        self._measurements = measurements
        self._lock = threading.Lock()
        self._is_frozen = False
        self._frozen_device: DeviceIdentity | None = None
        self.on_freeze: list[Callable[[], None]] = []
        self.on_thaw: list[Callable[[], None]] = []

    def check_thawed(self) -> None:
        """Raise RuntimeError while the engine is frozen."""
        if self._is_frozen:
            raise RuntimeError("the engine is frozen")

    def freeze(self) -> None:
        """Prepare for a snapshot; see `Engine.freeze`. The engine goes on if that fails."""
        with self._lock:
            if self._is_frozen:
                raise RuntimeError("the engine is frozen already")
            self._is_frozen = True
        try:
            self._runs.threads.submit(self._freeze).result()
        except BaseException:  # no snapshot was taken
            self._is_frozen = False
            self._runs.wait_idle()
            raise

    def thaw(self) -> None:
        """Go on in a copy of the process; see `Engine.thaw`."""
        if not self._is_frozen:
            raise RuntimeError("the engine is not frozen")
        self._runs.threads.submit(self._thaw).result()
        self._is_frozen = False
        self._runs.wait_idle()

    def _freeze(self) -> None:
        for callback in self.on_freeze:
            callback()
        self._runs.come_to_rest()
        self._frozen_device = self._measurements.device_identity()
        self._housekeeping.unload_for_snapshot()

    def _thaw(self) -> None:
        before, now = self._frozen_device, self._measurements.device_identity()
        if before is not None and (before.kind, before.name) != (now.kind, now.name):
            raise RuntimeError(f"device: another one than in the snapshot; got {now.name!r}, expected {before.name!r}")
        reseed()
        self._runs.signatures.renew()
        for callback in self.on_thaw:
            callback()
