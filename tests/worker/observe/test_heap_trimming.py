"""The heap is trimmed when the front has grown, and only then."""

from __future__ import annotations

from darkroom.worker.observe.heap_trimming import GROWTH_BYTES, HeapTrimming
from darkroom.worker.observe.memory import MachineMemory

MIB = 1024 * 1024


class Held(MachineMemory):
    """Memory of a process that a test sets."""

    held_bytes: int | None = 100 * MIB

    def process_bytes(self, pid: int) -> int | None:
        return self.held_bytes


async def test_a_front_that_has_grown_is_trimmed() -> None:
    memory, trimmed = Held(), []

    def trim() -> None:
        trimmed.append(memory.held_bytes)
        memory.held_bytes = 120 * MIB

    trimming = HeapTrimming(trim, memory)
    await trimming.look()
    memory.held_bytes = 100 * MIB + GROWTH_BYTES - 1
    await trimming.look()
    assert trimmed == []
    memory.held_bytes = 100 * MIB + GROWTH_BYTES
    await trimming.look()
    await trimming.look()
    assert trimmed == [100 * MIB + GROWTH_BYTES]


async def test_what_is_freed_later_without_growth_is_returned_too() -> None:
    """The memory was in use at the first trimming."""
    memory, trimmed = Held(), []
    trimming = HeapTrimming(lambda: trimmed.append(memory.held_bytes), memory)
    await trimming.look()
    memory.held_bytes = 500 * MIB
    for _ in range(8):
        await trimming.look()
    assert len(trimmed) == 3  # with pauses of one and of three looks between


async def test_a_front_that_has_shrunk_is_measured_anew() -> None:
    memory, trimmed = Held(), []
    trimming = HeapTrimming(lambda: trimmed.append(True), memory)
    await trimming.look()
    memory.held_bytes = 50 * MIB
    await trimming.look()
    memory.held_bytes = 60 * MIB + GROWTH_BYTES
    await trimming.look()
    assert trimmed == [True]


async def test_a_system_that_tells_nothing_is_left_alone() -> None:
    memory = Held()
    memory.held_bytes = None
    await HeapTrimming(lambda: pytest_fails(), memory).look()


def pytest_fails() -> None:
    raise AssertionError("trimmed without a measure")
