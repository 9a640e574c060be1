"""Residency: a handle of one model in the pool, which is what nodes hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from engine.memory.relief import Economy, ReliefStep
from engine.memory.resident import DeviceMemory, Patches, Resident


class PoolOfHandles(Protocol):
    """What a handle asks of its pool (`model_pool.py`)."""

    economy: Economy
    notes: set[ReliefStep]

    def keep(self, entry_id: int) -> None: ...

    def num_uses(self, entry_id: int) -> int: ...

    def begin_work(self, device: DeviceMemory, working_bytes: int) -> None: ...

    def using(self, ids: Sequence[int], working_bytes: int) -> AbstractContextManager[None]: ...

    def make_room(self, device: DeviceMemory, least_bytes: int, best_bytes: int) -> None: ...


class Residency:
    """A handle of one model. The model leaves the pool when its last handle is gone."""

    def __init__(self, pool: PoolOfHandles, entry_id: int, resident: Resident) -> None:
        self._pool = pool
        self._id = entry_id
        self._resident = resident

    @property
    def module(self) -> Any:
        return self._resident.module

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
        """Bytes of its weights in the machine's memory."""
        return self._resident.ram_bytes

    @property
    def economy(self) -> Economy:
        """How sparingly the node in hand has to run."""
        return self._pool.economy

    def free_bytes(self) -> float:
        """Bytes free on the load device now."""
        free: int = self._resident.device.free_bytes()
        return free

    def keep(self) -> None:
        """From now on this model leaves its device last, and never because nothing runs."""
        self._pool.keep(self._id)

    def begin_work(self, working_bytes: int) -> None:
        """While in use: what computes from here on takes so much memory besides weights."""
        self._pool.begin_work(self._resident.device, working_bytes)

    def note_split(self) -> None:
        """Tell that a batch was divided for want of memory."""
        self._pool.notes.add(ReliefStep.SPLIT_BATCH)

    def original_weight(self, key: str) -> Any:
        return self._resident.original_weight(key)

    def current_weight(self, key: str) -> Any:
        """With the patches of now, wherever it is: what the module shows is that only for blocks that are there."""
        return self._resident.current_weight(key)

    def prepare(self, *, patches: Patches | None = None, patches_id: object = None, compute_dtype: Any = None) -> None:
        """Carry these patches from the next use on, also where that is another's which brings this model along; nothing
        changes while it is in use.
        """
        if not self._pool.num_uses(self._id):
            self._resident.set_compute_dtype(compute_dtype)
            self._resident.want_patches(patches or {}, patches_id)

    @contextmanager
    def in_use(
        self,
        *,
        working_bytes: int = 0,
        patches: Patches | None = None,
        patches_id: object = None,
        together_with: Sequence[Residency] = (),
        compute_dtype: Any = None,
    ) -> Iterator[Any]:
        """While open, this model (with these patches) and the others can run on their device and none of them leaves.

        `compute_dtype` is what its weights are cast to while they compute, None what it was made for. A use within
        another gives the outer one its patches back, hooks' too. Raises `OutOfMemory`.
        """
        is_nested = self._pool.num_uses(self._id) > 0
        self.prepare(patches=patches, patches_id=patches_id, compute_dtype=compute_dtype)
        with (
            self._nested(patches or {}, patches_id) if is_nested else nullcontext(),
            self._pool.using([self._id, *(other._id for other in together_with)], working_bytes),
        ):
            yield self._resident.module

    @contextmanager
    def _nested(self, patches: Patches, patches_id: object) -> Iterator[None]:
        outer, hooks = self._resident.patches_now, self._resident.hooks_now
        self._resident.want_patches(patches, patches_id)
        try:
            yield
        finally:
            self._resident.patch(*outer)
            self.patch_hooks(*hooks)

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool = False) -> None:
        """While in use: carry these patches on top of the others, instead of those of the last call.

        `hooks_id` names them, None being none at all; with `keep` they are remembered until the use ends.
        """
        self._pool.make_room(self._resident.device, *self._resident.hooking_bytes(patches, hooks_id))
        self._resident.patch_hooks(patches, hooks_id, keep=keep)
