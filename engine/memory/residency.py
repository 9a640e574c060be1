"""Handle of one model in the pool, held by nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from darkroom.engine.memory.relief import MemorySavings, ReliefStep
from darkroom.engine.memory.resident import DeviceMemory, Patches, Resident


class PoolOfHandles(Protocol):
    """Pool as a handle uses it (`model_pool.py`)."""

    memory_savings: MemorySavings
    notes: set[ReliefStep]

    def keep(self, entry_id: int) -> None: ...

    def num_uses(self, entry_id: int) -> int: ...

    def begin_work(self, device: DeviceMemory, working_bytes: int) -> None: ...

    def using(self, ids: Sequence[int], working_bytes: int) -> AbstractContextManager[None]: ...

    def make_room(self, device: DeviceMemory, least_bytes: int, best_bytes: int) -> None: ...


class InPool(Protocol):
    """A model that another one's use loads along."""

    @property
    def entry_id(self) -> int: ...


class Residency:
    """Handle of one model. The model leaves the pool when its last handle is gone."""

    def __init__(self, pool: PoolOfHandles, entry_id: int, resident: Resident) -> None:
        self._pool = pool
        self._id = entry_id
        self._resident = resident

    @property
    def module(self) -> Any:
        return self._resident.module

    def fits_module(self) -> bool:
        """Return False where the module has other weights than those it had when it was added to the pool."""
        return self._resident.fits_module()

    def leave_module(self) -> None:
        """Return the weights to the module, which is to be added to the pool anew. Only while it is not in use."""
        self._resident.leave_module()

    @property
    def entry_id(self) -> int:
        """Number of the model in the pool."""
        return self._id

    @property
    def in_pool_use(self) -> bool:
        """True while the model is in use."""
        return self._pool.num_uses(self._id) > 0

    @property
    def load_device(self) -> str:
        return self._resident.load_device

    @property
    def offload_device(self) -> str:
        return self._resident.offload_device

    @property
    def size_bytes(self) -> int:
        return self._resident.size_bytes

    @property
    def loaded_bytes(self) -> int:
        return self._resident.loaded_bytes

    @property
    def ram_bytes(self) -> int:
        """Bytes of its weights in RAM."""
        return self._resident.ram_bytes

    @property
    def memory_savings(self) -> MemorySavings:
        """Memory savings under which the current node runs."""
        return self._pool.memory_savings

    def free_bytes(self) -> float:
        """Return the bytes that are free on the load device now."""
        free: int = self._resident.device.free_bytes()
        return free

    @property
    def device_bytes(self) -> int:
        """Bytes of the load device's own memory, 0 where it computes in the machine's."""
        device = self._resident.device
        total: int = device.total_bytes() if device.has_own_memory else 0
        return total

    def keep(self) -> None:
        """Evict this model last from now on, and never for being idle."""
        self._pool.keep(self._id)

    def begin_work(self, working_bytes: int) -> None:
        """Set the working memory, besides weights, of the computation that follows in this use."""
        self._pool.begin_work(self._resident.device, working_bytes)

    @property
    def cast_bytes(self) -> int:
        """Bytes of the largest layer while its weights are cast into fresh memory."""
        return self._resident.layers.cast_bytes

    @property
    def has_fixed_addresses(self) -> bool:
        """True where layers compute without a cast buffer, from weights that stay until they are moved or patched."""
        return self._resident.layers.has_fixed_addresses

    @property
    def can_have_fixed_addresses(self) -> bool:
        """True where `has_fixed_addresses` is, or would be with direct casts."""
        return self._resident.layers.can_have_fixed_addresses

    def cast_directly(self) -> Callable[[], None]:
        """Cast loaded weights into fresh memory, without buffers, until the function returned is called."""
        return self._resident.layers.cast_directly()

    def use_as_stored(self, patches_of: Mapping[Any, Mapping[str, Sequence[Any]]]) -> Callable[[], None]:
        """Leave loaded weights of these layers as they are stored until the function returned is called.

        `patches_of` has, for each layer, the patches of packed weights, by their names, that its code applies itself.
        """
        return self._resident.layers.use_as_stored(patches_of)

    def note_split(self) -> None:
        """Record that a batch was split because memory was short."""
        self._pool.notes.add(ReliefStep.SPLIT_BATCH)

    def original_weight(self, key: str) -> Any:
        return self._resident.values.original(key)

    def current_weight(self, key: str) -> Any:
        """Return the weight with the current patches. The module's own tensor is that only for loaded blocks."""
        return self._resident.values.current(key)

    def prepare(self, *, patches: Patches | None = None, patches_id: object = None, compute_dtype: Any = None) -> None:
        """Set the patches and the type for the next use, also one that another model's use begins.

        Nothing changes while the model is in use.
        """
        if not self._pool.num_uses(self._id):
            self._resident.layers.set_compute_dtype(compute_dtype)
            self._resident.patches.want(patches or {}, patches_id)

    @contextmanager
    def in_use(
        self,
        *,
        working_bytes: int = 0,
        patches: Patches | None = None,
        patches_id: object = None,
        together_with: Sequence[InPool] = (),
        compute_dtype: Any = None,
    ) -> Iterator[Any]:
        """Keep this model (with these patches) and the others on their device until the context ends.

        `compute_dtype` is the type its weights are cast to while they compute; None: the type it was made for. A nested
        use restores the patches of the outer one, those of hooks too. Raises `OutOfMemory`.
        """
        is_nested = self._pool.num_uses(self._id) > 0
        self.prepare(patches=patches, patches_id=patches_id, compute_dtype=compute_dtype)
        with (
            self._nested(patches or {}, patches_id) if is_nested else nullcontext(),
            self._pool.using([self._id, *(other.entry_id for other in together_with)], working_bytes),
        ):
            yield self._resident.module

    @contextmanager
    def _nested(self, patches: Patches, patches_id: object) -> Iterator[None]:
        outer, hooks = self._resident.patches.now, self._resident.patches.hooks_now
        self._resident.patches.want(patches, patches_id)
        try:
            yield
        finally:
            self._resident.patches.patch(*outer)
            self.patch_hooks(*hooks)

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool = False) -> None:
        """Apply these patches on top of the others, in place of those of the last call, while the model is in use.

        `hooks_id` identifies them; None: no patches. With `keep` the patched weights are cached until the use ends.
        """
        self._pool.make_room(self._resident.device, *self._resident.patches.hooking_bytes(patches, hooks_id))
        self._resident.patches.patch_hooks(patches, hooks_id, keep=keep)
