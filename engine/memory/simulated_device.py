"""Simulated device with a memory budget and the CPU's arithmetic, which fails as a real one would.

An allocation on it is a CPU tensor whose bytes count against the budget until its memory is freed, so that a leaked
reference keeps them taken. Copies on a stream happen as late as possible: when something waits for them. Reading what
has not arrived, and overwriting what may still be read, raise `StreamHazard`.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from darkroom.engine.errors import OutOfMemory
from darkroom.engine.memory.device import Device, DeviceReport, Dtype, Mark, Stream, Tensor
from darkroom.engine.memory.device_facts import DeviceFacts


class StreamHazard(RuntimeError):
    """Missing wait between streams."""


@dataclass(eq=False, slots=True)
class _Stream:
    """Simulated stream. `waiting` are its pending copies; `has_waited_for` is the last computation it waited for."""

    waiting: deque[tuple[Any, Any]] = field(default_factory=deque)
    num_asked: int = 0
    num_done: int = 0
    has_waited_for: int = 0


@dataclass(frozen=True, slots=True)
class _Mark:
    stream: _Stream | None
    position: int


class SimulatedDevice(Device):
    """Device with `budget_bytes` of memory."""

    has_own_memory = True
    charges_blocks = True

    def __init__(self, budget_bytes: int) -> None:
        super().__init__("cpu")
        self.budget_bytes = budget_bytes
        self.charged_bytes = 0
        self.most_charged_bytes = 0
        self.num_refused = 0
        self.host_bytes = 0  # pinned and staging memory, in RAM
        self.most_host_bytes = 0
        self._streams: list[_Stream] = []
        self._computed = 0  # counts the reads of the computing stream
        self._read_at: dict[int, int] = {}  # memory's address -> the count at its last read

    def facts(self) -> DeviceFacts:
        total, free = self.total_bytes(), self.free_bytes()
        return DeviceFacts("simulated", "cpu", "a simulated device", total, free, keeps_float8=True)

    def report(self) -> DeviceReport:
        total, free = self.total_bytes(), self.free_bytes()
        return DeviceReport("simulated device", "simulated", 0, total, free, self.charged_bytes, 0)

    def total_bytes(self) -> int:
        return self.budget_bytes

    def free_bytes(self) -> int:
        return max(0, self.budget_bytes - self.charged_bytes)

    def allocated_bytes(self) -> int | None:
        return self.charged_bytes

    def peak_bytes(self) -> int | None:
        return self.most_charged_bytes

    def reset_peak(self) -> None:
        self.most_charged_bytes = self.charged_bytes

    def holds(self, tensor: Tensor) -> bool:
        return False  # a CPU tensor has to be copied like any other

    def empty_like(self, tensor: Tensor, dtype: Dtype | None = None) -> Tensor:
        self._refuse_beyond(tensor.numel() * (dtype or tensor.dtype).itemsize)
        return self._charged(super().empty_like(tensor, dtype))

    def empty_bytes(self, num_bytes: int) -> Tensor:
        self._refuse_beyond(num_bytes)
        return self._charged(super().empty_bytes(num_bytes))

    def empty(self, shape: Sequence[int], dtype: Dtype) -> Tensor:
        self._refuse_beyond(math.prod(shape) * dtype.itemsize)
        return self._charged(super().empty(shape, dtype))

    def pinned_like(self, tensor: Tensor) -> Tensor | None:
        return self._in_ram(tensor.clone())

    def staging_bytes(self, num_bytes: int) -> Tensor:
        return self._in_ram(super().staging_bytes(num_bytes))

    def _in_ram(self, tensor: Tensor) -> Tensor:
        """Count a buffer in RAM that streams read from, but not against the budget."""
        self.host_bytes += tensor.nbytes
        self.most_host_bytes = max(self.most_host_bytes, self.host_bytes)
        weakref.finalize(tensor.untyped_storage(), self._give_host_back, tensor.nbytes)
        return tensor

    def _give_host_back(self, num_bytes: int) -> None:
        self.host_bytes -= num_bytes

    def begin_block(self, working_bytes: int) -> None:
        self._refuse_beyond(working_bytes)
        self.most_charged_bytes = max(self.most_charged_bytes, self.charged_bytes + working_bytes)

    def _refuse_beyond(self, num_bytes: int) -> None:
        free = self.budget_bytes - self.charged_bytes
        if num_bytes > free:
            self.num_refused += 1
            raise OutOfMemory(
                f"the simulated device has {free:,} of {self.budget_bytes:,} bytes free; {num_bytes:,} were asked for",
                needed_bytes=num_bytes,
                free_bytes=max(0, free),
            )

    def _charged(self, tensor: Tensor) -> Tensor:
        self.charged_bytes += tensor.nbytes
        self.most_charged_bytes = max(self.most_charged_bytes, self.charged_bytes)
        weakref.finalize(tensor.untyped_storage(), self._give_back, tensor.nbytes, _address(tensor))
        return tensor

    def _give_back(self, num_bytes: int, address: int) -> None:
        self.charged_bytes -= num_bytes
        self._read_at.pop(address, None)

    # --- streams -----------------------------------------------------------------------------------------------------

    def new_stream(self) -> object:
        stream = _Stream()
        self._streams.append(stream)
        return stream

    def copy(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        if stream is None:
            target.copy_(source)
            return
        if self._read_at.get(_address(target), 0) > stream.has_waited_for:
            raise StreamHazard("a copy would overwrite what may still be read")
        stream.waiting.append((target, source))
        stream.num_asked += 1

    def mark(self, stream: Stream) -> Mark:
        return _Mark(None, self._computed) if stream is None else _Mark(stream, stream.num_asked)

    def wait(self, stream: Stream, mark: Mark) -> None:
        if mark.stream is None:
            if stream is not None:
                stream.has_waited_for = max(stream.has_waited_for, mark.position)
            return
        if stream is None:
            _do(mark.stream, mark.position)

    def wait_on_host(self, mark: Mark) -> None:
        if mark.stream is not None:
            _do(mark.stream, mark.position)

    def synchronize(self) -> None:
        for stream in self._streams:
            _do(stream, stream.num_asked)

    def uses(self, tensor: Tensor) -> None:
        address = _address(tensor)
        if any(_address(target) == address for stream in self._streams for target, _ in stream.waiting):
            raise StreamHazard("a weight is read before it has arrived")
        self._computed += 1
        self._read_at[address] = self._computed


def _do(stream: _Stream, position: int) -> None:
    while stream.num_done < position:
        target, source = stream.waiting.popleft()
        target.copy_(source)
        stream.num_done += 1


def _address(tensor: Tensor) -> int:
    """Return the address of the memory that the tensor is a part of."""
    return int(tensor.untyped_storage().data_ptr())
