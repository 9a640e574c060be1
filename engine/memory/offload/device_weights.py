"""Weights of a model on its device: loading, patching and offloading them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from darkroom.engine.memory.device import Device, Dtype, Tensor
from darkroom.engine.memory.offload.blocks import Block
from darkroom.engine.memory.offload.host_weights import HostWeights
from darkroom.engine.memory.offload.patching import WantedPatches
from darkroom.engine.memory.offload.transfer_speeds import TransferSpeeds
from darkroom.engine.memory.offload.weight import Weight
from darkroom.engine.memory.offload.weight_state import HostState
from darkroom.engine.memory.staging import RawWeight, upload
from darkroom.engine.memory.weight_patches import WeightPatch, same_patches

Originals = Mapping[str, tuple[Tensor | None, HostState]]


class DeviceWeights:
    """Weights of one model on its device, which are copies of the originals.

    Where a model computes on the CPU, or never leaves its device, they are the originals themselves.
    The class is large because loading, patching and offloading undo one another where one of them fails.
    """

    def __init__(
        self,
        name: str,
        module: Any,
        weights: Mapping[str, Weight],
        device: Device,
        host_weights: HostWeights,
        patches: WantedPatches,
        *,
        can_leave: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._module = module
        self._weights = weights
        self._device = device
        self._host_weights = host_weights
        self._patches = patches
        self._can_leave = can_leave
        self._now = now
        self.speeds = TransferSpeeds()
        self._applied_version = patches.version  # of the patches that all loaded weights carry
        self.cached_hooks: dict[object, dict[str, Tensor]] = {}  # hooks' id -> the weights they gave

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def patched_bytes(self) -> int:
        """Bytes of patched weights beside originals that are where they compute."""
        return sum(
            weight.in_module.nbytes for weight in self._weights.values() if weight.applied and self._is_beside(weight)
        )

    @property
    def wanted_patched_bytes(self) -> int:
        """Bytes of patched weights beside their originals once the wanted patches are applied."""
        wanted = (self._weights[key] for key in self._patches.of_use)
        beside = (weight for weight in wanted if self._is_beside(weight) and not weight.is_patched_on_the_way)
        return sum(weight.in_module.nbytes for weight in beside)

    def _is_beside(self, weight: Weight) -> bool:
        """Return True where the original is where the model computes, so that a patched weight is a second tensor."""
        if not self._device.has_own_memory or not self._can_leave:
            return True
        return weight.host_state is HostState.ON_DEVICE

    @property
    def hooked_bytes(self) -> int:
        """Bytes of hooked weights, those in place and those cached. Also read from other threads."""
        hooked = [weight.loaded for weight in self._weights.values() if weight.is_hooked]
        hooked += [tensor for made in list(self.cached_hooks.values()) for tensor in made.values()]
        return sum({id(tensor): tensor.nbytes for tensor in hooked if tensor is not None}.values())

    # --- loading and offloading --------------------------------------------------------------------------------------

    def load(self, blocks: Sequence[Block]) -> None:
        """Load blocks, those without originals in RAM straight from the file, one tensor after the other.

        Raises `OutOfMemory`, and the errors of reading; blocks that are not whole are offloaded then.
        """
        missing = {weight.key: weight for block in blocks for weight in block.weights if weight.loaded is None}
        names = self._host_weights.names
        originals = {key: (weight.host, weight.host_state) for key, weight in missing.items() if key in names}
        num_loaded = 0
        try:
            if self._device.has_own_memory:
                self._upload([weight for weight in missing.values() if self._host_weights.comes_from_file(weight)])
            nowhere = [key for key, weight in missing.items() if weight.host is None and weight.loaded is None]
            for key, tensor in self._host_weights.read(nowhere):
                self._load_one(missing[key], tensor)
            for block in blocks:
                for weight in block.weights:
                    if weight.loaded is None:
                        assert weight.host is not None, f"{self._name} {weight.key}: its original is lost"
                        self._load_one(weight, weight.host)
                num_loaded += 1
        finally:
            for block in blocks[num_loaded:]:  # the device had no room for all of it
                self._undo_load(block, originals)

    def _upload(self, weights: Sequence[Weight]) -> None:
        """Copy weights from the file to the device, through a little pinned memory."""
        by_key = {weight.key: weight for weight in weights}
        raws = list(self._host_weights.raw(by_key))

        def pairs() -> Iterator[tuple[Tensor, RawWeight]]:
            for key, raw in raws:
                target = self._device.empty_like(by_key[key].in_module)
                by_key[key].begin_load(target)
                yield target, raw

        began = self._now()
        if raws:
            upload(self._device, pairs(), max(raw.num_bytes for _, raw in raws))
            num_bytes = sum(weight.in_module.nbytes for weight in weights)
            self.speeds.note_read(num_bytes, self._now() - began)
        for weight in weights:
            weight.end_load()
            self._keep_original(weight)
            self.bring_up_to_date(weight)

    def _load_one(self, weight: Weight, original: Tensor) -> None:
        if self._device.holds(original):
            if weight.host is None:
                weight.put_host(original, self._host_weights.state_when_read(weight.key))
            weight.load_in_place()
        else:
            target = self._device.empty_like(weight.in_module)
            weight.begin_load(target)
            self._device.copy(None, target, original)
            weight.end_load()
            self._keep_original(weight)
        self.bring_up_to_date(weight)

    def _keep_original(self, weight: Weight) -> None:
        """Make a loaded weight of a model that never leaves its own original."""
        if self._can_leave:
            return
        if self._device.has_own_memory:
            weight.keep_on_device()
        elif weight.loaded is not None:
            weight.put_host(weight.loaded, HostState.IN_RAM)

    def _undo_load(self, block: Block, originals: Originals) -> None:
        """Offload what was loaded, also originals that had just come to stay, as far as the file has them."""
        for weight in block.weights:
            if self._device.has_own_memory and not self._can_leave and weight.key in originals:
                weight.restore_host(*originals[weight.key])
            weight.offload()

    def offload_all(self, blocks: Sequence[Block], *, into_ram: bool) -> None:
        """Offload the blocks of a model that is not in use, the quickest way for it to come back.

        Without `into_ram`, and where the file is read faster than RAM takes copies and gives them back, nothing is
        copied that the file can give again.
        """
        into_ram = into_ram and not self.speeds.prefers_file
        began, num_bytes = self._now(), 0
        for block in blocks:
            num_bytes += self.offload(block, into_ram=into_ram)
        self.speeds.note_copied(num_bytes, self._now() - began)

    def offload(self, block: Block, *, into_ram: bool = True) -> int:
        """Offload a block; return the bytes copied. Without `into_ram` only what the file cannot give again is."""
        if not block.is_loaded:
            return 0
        num_copied = 0
        names = () if into_ram else self._host_weights.names
        for weight in block.weights:
            is_lost = weight.host_state is HostState.ABSENT and weight.key not in names
            copy = (
                self._host_weights.copy_in_ram(weight) if is_lost or weight.host_state is HostState.ON_DEVICE else None
            )
            weight.offload()
            if copy is not None:
                weight.put_host(copy, HostState.IN_RAM)
                num_copied += copy.nbytes
        return num_copied

    # --- patches of the use ------------------------------------------------------------------------------------------

    @property
    def carries_wanted(self) -> bool:
        """True where all loaded weights carry the patches that are wanted now."""
        return self._applied_version == self._patches.version

    def apply_patches(self) -> None:
        """Apply the wanted patches to all loaded weights; to all of them or, when that fails, none."""
        if self.carries_wanted:
            return
        try:
            for key, weight in self._weights.items():
                if weight.loaded is not None and (weight.applied or key in self._patches.of_use):
                    self.bring_up_to_date(weight)
        except BaseException:
            self._undo_patches()
            raise
        self._applied_version = self._patches.version

    def _undo_patches(self) -> None:
        """Undo all patches after a failure, so that the next call does not take them for applied."""
        self._patches.want({}, None)
        for weight in self._weights.values():
            if weight.loaded is not None:
                self.bring_up_to_date(weight)
        self._applied_version = self._patches.version

    def bring_up_to_date(self, weight: Weight) -> None:
        """Apply the wanted patches to a loaded weight."""
        wanted = self._patches.of_use.get(weight.key, ())
        if weight.is_patched_on_the_way or same_patches(weight.applied, wanted):
            return
        if weight.applied:
            self._unpatch(weight)
        if wanted:
            self._patch(weight, wanted)

    def _unpatch(self, weight: Weight) -> None:
        original = self._host_weights.original(weight.key)
        if self._device.holds(original) or not self._can_leave:
            weight.unpatch(original)
            return
        assert weight.loaded is not None
        target = weight.loaded  # the memory of the patched one, which is ours alone
        if target.shape != original.shape:
            target = self._device.empty_like(original)
        self._device.copy(None, target, original)
        weight.unpatch(target)

    def _patch(self, weight: Weight, entries: Sequence[WeightPatch]) -> None:
        assert weight.loaded is not None
        changed = self.patched(entries, weight.loaded, weight.key)
        is_ours = self._device.has_own_memory and weight.loaded is not weight.host
        if is_ours and changed.shape == weight.loaded.shape:
            weight.patch(weight.loaded.copy_(changed), entries)
        else:
            weight.patch(self._kept(changed), entries)

    def _kept(self, changed: Tensor) -> Tensor:
        """Return a patched weight in memory that the device counts."""
        return self._device.empty_like(changed).copy_(changed) if self._device.charges_blocks else changed

    def _patched_beside(self, entries: Sequence[WeightPatch], weight: Weight) -> Tensor:
        """Return the patched weight in memory of its own on the device."""
        assert weight.loaded is not None
        return self._kept(self.patched(entries, weight.loaded, weight.key))

    def patched(self, entries: Sequence[WeightPatch], weight: Tensor, key: str, *, working_bytes: int = 0) -> Tensor:
        """Return a new tensor, patched where `weight` is, while `working_bytes` are in use. Raises `OutOfMemory`."""
        rounded: Dtype | None = getattr(self._module, "patched_dtype", None)
        return self._patches.patched(entries, weight, key, rounded, working_bytes=working_bytes)

    # --- patches of hooks --------------------------------------------------------------------------------------------

    def hook(self, weight: Weight, ready: Tensor | None) -> Tensor:
        """Apply the patches of hooks on top of a loaded weight: `ready` is the result where that is cached."""
        hooked = self._patched_beside(self._patches.of_hooks[weight.key], weight) if ready is None else ready
        weight.hook(hooked)
        return hooked

    def unhook(self) -> None:
        """Undo the patches of hooks."""
        for key in self._patches.of_hooks:
            if self._weights[key].is_hooked:
                self._weights[key].unhook()
        self._patches.want_hooks({}, None)
