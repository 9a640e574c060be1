"""Weights of a network that a pack built itself, held by the engine's model memory like those of its own networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from darkroom.engine.comfy.torch_types import DeviceLike
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.memory.residency import Residency
from darkroom.engine.models.weight_handle import WeightPatch

Patches = Mapping[str, Sequence[WeightPatch]]


class PackWeights:
    """Handle of a pack's module (`WeightHandle`).

    Packs build a network, wrap it, and go on changing it: they load weights, add layers, convert types. So the module
    is added to model memory when it is used first, and anew when it has other weights than it had then. One module has
    one handle, whatever number of values is made of it (`PackNetworks`).
    """

    def __init__(self, module: nn.Module, memory: ModelMemory, *, on_cpu: bool = False) -> None:
        self._module = module
        self._memory = memory
        self._on_cpu = on_cpu
        self._held: Residency | None = None

    def _residency(self) -> Residency:
        """Return the pool's handle of the module as it is now."""
        held = self._held
        if held is not None and not held.in_pool_use and not held.fits_module():
            held.leave_module()
            self._held = held = None
        if held is None:
            name = f"{type(self._module).__name__} of a pack"
            self._held = held = self._memory.keep(name, self._module, on_cpu=self._on_cpu, is_borrowed=True)
        return held

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        return self._module

    @property
    def load_device(self) -> str:
        return "cpu" if self._on_cpu else self._memory.device.torch_name

    @property
    def offload_device(self) -> str:
        return "cpu" if self._held is None else self._held.offload_device

    @property
    def size_bytes(self) -> int:
        if self._held is not None:
            return self._held.size_bytes
        return sum(tensor.nbytes for tensor in self._module.state_dict().values())

    @property
    def loaded_bytes(self) -> int:
        return 0 if self._held is None else self._held.loaded_bytes

    @property
    def ram_bytes(self) -> int:
        return self.size_bytes if self._held is None else self._held.ram_bytes

    @property
    def memory_savings(self) -> Any:
        return self._memory.pool.memory_savings

    def free_bytes(self) -> float:
        return self._residency().free_bytes()

    @property
    def device_bytes(self) -> int:
        return self._residency().device_bytes

    @property
    def cast_bytes(self) -> int:
        return self._residency().cast_bytes

    @property
    def has_fixed_addresses(self) -> bool:
        return self._residency().has_fixed_addresses

    @property
    def can_have_fixed_addresses(self) -> bool:
        return self._residency().can_have_fixed_addresses

    @property
    def entry_id(self) -> int:
        """Number of the model in the pool, to which it is added if need be."""
        return self._residency().entry_id

    # --- use ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def in_use(
        self,
        *,
        working_bytes: int = 0,
        patches: Patches | None = None,
        patches_id: object = None,
        together_with: Sequence[Any] = (),
        compute_dtype: torch.dtype | None = None,
    ) -> Iterator[nn.Module]:
        with self._residency().in_use(
            working_bytes=working_bytes,
            patches=patches,
            patches_id=patches_id,
            together_with=together_with,
            compute_dtype=compute_dtype,
        ) as module:
            yield module

    def prepare(
        self,
        *,
        patches: Patches | None = None,
        patches_id: object = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self._residency().prepare(patches=patches, patches_id=patches_id, compute_dtype=compute_dtype)

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool = False) -> None:
        self._residency().patch_hooks(patches, hooks_id, keep=keep)

    def original_weight(self, key: str) -> torch.Tensor:
        weight: torch.Tensor = self._residency().original_weight(key)
        return weight

    def current_weight(self, key: str) -> torch.Tensor:
        weight: torch.Tensor = self._residency().current_weight(key)
        return weight

    def cast_directly(self) -> Callable[[], None]:
        return self._residency().cast_directly()

    def use_as_stored(self, patches_of: Mapping[nn.Module, Mapping[str, Sequence[WeightPatch]]]) -> Callable[[], None]:
        return self._residency().use_as_stored(patches_of)

    def begin_work(self, working_bytes: int) -> None:
        self._residency().begin_work(working_bytes)

    def note_split(self) -> None:
        self._residency().note_split()

    def keep(self) -> None:
        self._residency().keep()


class PackNetworks:
    """Handles of the networks that packs brought to one engine, one a module."""

    def __init__(self, memory: ModelMemory) -> None:
        self._memory = memory
        self._by_id: WeakValueDictionary[int, PackWeights] = WeakValueDictionary()  # a handle holds its module

    def weights_of(self, module: nn.Module, load_device: DeviceLike | None) -> PackWeights:
        """Return the handle of a module, which computes on `load_device`: the CPU, or else the engine's device."""
        handle = self._by_id.get(id(module))
        if handle is None:
            on_cpu = load_device is not None and torch.device(load_device).type == "cpu"
            self._by_id[id(module)] = handle = PackWeights(module, self._memory, on_cpu=on_cpu)
        return handle
