"""Protocols of a model in the pool and of its device, as far as the pool uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from darkroom.engine.memory.transfer_streams import TransferStreams

Patches = Mapping[str, Sequence[Any]]


class DeviceMemory(Protocol):
    """Device memory as the pool uses it."""

    torch_name: str
    has_own_memory: bool

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int: ...

    def empty_cache(self) -> None: ...

    def allocated_bytes(self) -> int | None: ...

    def peak_bytes(self) -> int | None: ...

    def reset_peak(self) -> None: ...


class ResidentLayers(Protocol):
    """Layers of a model, as they compute (`offload/layers.py`)."""

    working_bytes: int
    """Working memory of the current use, charged at each block where the device counts."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def casts(self) -> bool: ...

    @property
    def cast_bytes(self) -> int: ...

    @property
    def has_fixed_addresses(self) -> bool: ...

    @property
    def can_have_fixed_addresses(self) -> bool: ...

    def cast_directly(self) -> Callable[[], None]: ...

    def use_as_stored(self, patches_of: Mapping[Any, Mapping[str, Sequence[Any]]]) -> Callable[[], None]: ...

    def set_compute_dtype(self, dtype: Any) -> None: ...


class ResidentPatches(Protocol):
    """Patches of a model (`offload/module_patches.py`)."""

    @property
    def now(self) -> tuple[Patches, object]: ...

    @property
    def hooks_now(self) -> tuple[Patches, object]: ...

    @property
    def room_bytes(self) -> int: ...

    def patch(self, patches: Patches, patches_id: object) -> None: ...

    def want(self, patches: Patches, patches_id: object) -> None: ...

    def apply(self) -> None: ...

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool) -> None: ...

    def hooking_bytes(self, patches: Patches, hooks_id: object) -> tuple[int, int]: ...


class ResidentValues(Protocol):
    """Values of a model's weights (`offload/weight_values.py`)."""

    def original(self, key: str) -> Any: ...

    def current(self, key: str) -> Any: ...


class Resident(Protocol):
    """Model that can be on a device in whole or in part, and can be patched (`offload/module_weights.py`)."""

    name: str
    module: Any
    can_leave: bool
    size_bytes: int
    fixed_bytes: int

    @property
    def layers(self) -> ResidentLayers: ...

    @property
    def patches(self) -> ResidentPatches: ...

    @property
    def values(self) -> ResidentValues: ...

    @property
    def device(self) -> Any: ...

    @property
    def streams(self) -> TransferStreams: ...

    @property
    def load_device(self) -> str: ...

    @property
    def offload_device(self) -> str: ...

    @property
    def loaded_bytes(self) -> int: ...

    @property
    def conversion_bytes(self) -> int: ...

    @property
    def patched_copy_bytes(self) -> int: ...

    @property
    def more_bytes(self) -> int: ...

    @property
    def ram_bytes(self) -> int: ...

    @property
    def droppable_bytes(self) -> int: ...

    def load(self, room: int | None = None) -> None: ...

    def unload(self, num_bytes: int | None = None, *, into_ram: bool = True) -> int: ...

    def offload_in_use(self, num_bytes: int) -> int: ...

    def drop(self) -> int: ...

    def release(self) -> None: ...

    def fits_module(self) -> bool: ...

    def leave_module(self) -> None: ...

    def end_use(self) -> None: ...

    def check_integrity(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Node that loaded a model."""

    node_id: str
    class_type: str

    def __str__(self) -> str:
        return f"{self.class_type} (node {self.node_id})"
