"""The device as nodes use it that compute on it without a model."""

from __future__ import annotations

from typing import Protocol


class DeviceWork(Protocol):
    """Memory of the device (`engine/memory/model_memory.py::ModelMemory`)."""

    def free_device_bytes(self) -> int:
        """Return the bytes of the device that are free, or are those of weights that may leave it."""
        ...

    def make_device_room(self, num_bytes: int) -> None:
        """Have weights leave the device until so many bytes of it are free."""
        ...
