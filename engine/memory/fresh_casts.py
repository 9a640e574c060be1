"""Memory of its own for each cast weight, in place of a cast buffer (`transfer_streams.py`).

A cast buffer is freed when nothing is in use, and is filled on a stream of its own. What is to be recorded as a CUDA
graph may have neither: its weights are cast on the computing stream, into memory that the allocator gives to the layer
alone. Values and layouts are those in a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from darkroom.engine.memory.device import Device, Dtype, Tensor


class FreshCasts:
    """Stand-in for a `TransferStream` with a buffer, for weights that are on the device already."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def bring(self, source: Tensor, dtype: Dtype, *, channels_last: bool, is_computed: bool = False) -> Tensor:
        """Return the values of `source` as `dtype` in its own layout. Raises `OutOfMemory`."""
        target = self._device.empty_like(source, dtype)
        self._device.copy(None, target, source)
        return target

    def reserve(self, shape: Sequence[int], dtype: Dtype) -> Tensor:
        """Return uninitialised memory for values that the caller computes. Raises `OutOfMemory`."""
        return self._device.empty(shape, dtype)

    def arrive(self) -> None:
        """Do nothing: all of it happens on the computing stream."""

    def end(self) -> None:
        """Do nothing: the memory is freed with the last reference to it."""
