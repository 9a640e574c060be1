"""Identity and speed of the device and the disk of this engine."""

from __future__ import annotations

import platform
from concurrent.futures import Future

import torch

from darkroom.engine.memory import device as devices
from darkroom.engine.memory.device import DeviceIdentity
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.preloaded_models import PRELOADED_KINDS
from darkroom.engine.probes.device import DeviceFigures, measure
from darkroom.engine.probes.disk import DiskFigure, measure_disk
from darkroom.engine.runtime.run_threads import RunThreads
from darkroom.host.cores import processor_model, usable_cores


class Measurements:
    """Identity of the engine's device, and measurements of it and of the disk that holds the models."""

    def __init__(self, device: str, threads: RunThreads, folders: ModelFolders) -> None:
        self._device = device
        self._threads = threads
        self._folders = folders

    def device_identity(self) -> DeviceIdentity:
        return devices.identity(self._device)

    def processor(self) -> str | None:
        """Return the processor's name with its cores and vector instructions; None with another device."""
        if torch.device(self._device).type != "cpu":
            return None
        name = processor_model() or platform.machine()
        return f"{name}, {usable_cores()} cores, {torch.backends.cpu.get_cpu_capability()}"

    def measure_device(self) -> Future[DeviceFigures]:
        """Measure the device and check that it computes correctly, after the prompts submitted so far.

        Takes about a second.
        """
        return self._threads.submit(lambda: measure(self._device))

    def measure_disk(self) -> DiskFigure | None:
        """Measure the speed of reading the user's largest model file. Takes about a second, on the caller's thread."""
        names = ((kind, name) for kind in PRELOADED_KINDS for name in self._folders.names(kind))
        paths = (path for kind, name in names if (path := self._folders.path(kind, name)) is not None)
        return measure_disk(path for path in paths if not self._folders.is_built_in(path))
