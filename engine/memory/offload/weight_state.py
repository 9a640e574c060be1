"""States of one weight, on the host and on the device, and the legal moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class HostState(Enum):
    """State of the original of a weight."""

    __hash__ = object.__hash__  # by identity, which is what members are compared by: Enum's own is Python code

    ABSENT = "absent"  # nowhere in memory: a file has it, or the device's copy is the only one
    MAPPED = "mapped"  # a view of the mapped file, of which nothing has been read yet
    READ = "read"  # a view of the mapped file whose pages have been read
    IN_RAM = "in RAM"  # a tensor of its own in pageable memory
    PINNED = "pinned"  # a tensor of its own in pinned memory
    ON_DEVICE = "on device"  # in the device's memory, where it stays as long as the model never leaves

    @property
    def takes_ram(self) -> bool:
        """True where the original takes RAM that the process could free."""
        return self in (HostState.IN_RAM, HostState.PINNED)


class DeviceState(Enum):
    """State of a weight where its model computes."""

    __hash__ = object.__hash__

    OFFLOADED = "offloaded"  # the module has the original, or its shape alone
    LOADING = "loading"  # memory is allocated, the values have not arrived
    LOADED = "loaded"  # the values are the original's
    PATCHED = "patched"  # the values are those with the patches of the use
    HOOKED = "hooked"  # hooks' patches are on top, and what is below them is kept
    STREAMED = "streamed"  # the module has a cast buffer for one call; what it had before is kept


class IllegalMove(RuntimeError):
    """Move of a weight between two states that the table does not have."""


RESIDENT_STATES = frozenset({DeviceState.LOADED, DeviceState.PATCHED, DeviceState.HOOKED})

DEVICE_MOVES: Mapping[DeviceState, frozenset[DeviceState]] = {
    DeviceState.OFFLOADED: frozenset({DeviceState.LOADING, DeviceState.LOADED, DeviceState.STREAMED}),
    DeviceState.LOADING: frozenset({DeviceState.LOADED, DeviceState.OFFLOADED}),
    DeviceState.LOADED: frozenset(
        {DeviceState.PATCHED, DeviceState.HOOKED, DeviceState.STREAMED, DeviceState.OFFLOADED}
    ),
    DeviceState.PATCHED: frozenset(
        {DeviceState.LOADED, DeviceState.HOOKED, DeviceState.STREAMED, DeviceState.OFFLOADED}
    ),
    DeviceState.HOOKED: frozenset(
        {DeviceState.LOADED, DeviceState.PATCHED, DeviceState.STREAMED, DeviceState.OFFLOADED}
    ),
    DeviceState.STREAMED: RESIDENT_STATES | {DeviceState.OFFLOADED},  # only the state that it came from
}

HOST_MOVES: Mapping[HostState, frozenset[HostState]] = {
    HostState.ABSENT: frozenset({HostState.READ, HostState.IN_RAM, HostState.ON_DEVICE}),
    HostState.MAPPED: frozenset({HostState.READ, HostState.ON_DEVICE}),
    HostState.READ: frozenset({HostState.PINNED, HostState.ON_DEVICE}),
    HostState.IN_RAM: frozenset({HostState.PINNED, HostState.ON_DEVICE, HostState.ABSENT}),
    HostState.PINNED: frozenset({HostState.ON_DEVICE, HostState.ABSENT}),
    # To RAM when the model is offloaded; to the others when a load that failed is undone.
    HostState.ON_DEVICE: frozenset(HostState) - {HostState.ON_DEVICE},
}
