"""What a device holds of a model's weights: how copies come there, are patched there and leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.memory.device import Device, Dtype, Tensor
from engine.memory.offload.blocks import Block, Weight
from engine.memory.offload.host_weights import HostWeights
from engine.memory.offload.patching import WantedPatches
from engine.memory.staging import RawWeight, upload
from engine.memory.weight_patches import WeightPatch, same_patches


class DeviceWeights:
    """The copies of one model. Where it computes on the CPU, or never leaves its device, homes are their own copies."""

    def __init__(
        self,
        name: str,
        module: Any,
        weights: Mapping[str, Weight],
        device: Device,
        homes: HostWeights,
        patches: WantedPatches,
        *,
        can_leave: bool,
    ) -> None:
        self._name = name
        self._module = module
        self._weights = weights
        self._device = device
        self._host_weights = homes
        self._patches = patches
        self._can_leave = can_leave
        self.remembered: dict[object, dict[str, Tensor]] = {}  # hooks' id -> the weights they gave

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def patched_bytes(self) -> int:
        """What patched weights take beside originals that lie where they compute."""
        return sum(
            weight.shown.nbytes for weight in self._weights.values() if weight.applied and self._lies_beside(weight)
        )

    @property
    def wanted_patched_bytes(self) -> int:
        """What they will take once what is wanted is applied."""
        wanted = (self._weights[key] for key in self._patches.of_use)
        return sum(weight.shown.nbytes for weight in wanted if self._lies_beside(weight))

    def _lies_beside(self, weight: Weight) -> bool:
        """Whether the original is where the model computes, so that a patched weight is another one there."""
        if not self._device.has_own_memory or not self._can_leave:
            return True
        return weight.home is not None and weight.home.device.type != "cpu"

    @property
    def hooked_bytes(self) -> int:
        """What hooked weights take, those in place and those remembered. Also asked from other threads."""
        hooked = [weight.held for weight in self._weights.values() if weight.below is not None]
        hooked += [tensor for made in list(self.remembered.values()) for tensor in made.values()]
        return sum({id(tensor): tensor.nbytes for tensor in hooked if tensor is not None}.values())

    # --- coming and leaving ------------------------------------------------------------------------------------------

    def hold(self, blocks: Sequence[Block]) -> None:
        """Bring blocks to the device: what has no home straight from the file, one tensor after the other.

        Raises `OutOfMemory`, and what reading raises; blocks that have not come whole are away then.
        """
        lacking = {weight.key: weight for block in blocks for weight in block.weights if weight.held is None}
        homes = {key: weight.home for key, weight in lacking.items() if key in self._host_weights.names}
        try:
            if self._device.has_own_memory:
                self._upload([weight for weight in lacking.values() if self._host_weights.comes_from_file(weight)])
            nowhere = [key for key, weight in lacking.items() if weight.home is None and weight.held is None]
            for key, tensor in self._host_weights.read(nowhere):
                self._hold(lacking[key], tensor)
            for block in blocks:
                for weight in block.weights:
                    if weight.held is None:
                        assert weight.home is not None, f"{self._name} {weight.key}: nobody has it"
                        self._hold(weight, weight.home)
                block.is_there = True
        finally:
            for block in blocks:
                if not block.is_there:  # the device had no room for all of it
                    self._take_back(block, homes)

    def _upload(self, weights: Sequence[Weight]) -> None:
        """Bring weights from the file to the device, through a little pinned memory."""
        by_key = {weight.key: weight for weight in weights}
        raws = list(self._host_weights.raw(by_key))

        def pairs() -> Iterator[tuple[Tensor, RawWeight]]:
            for key, raw in raws:
                held = by_key[key].held = self._device.empty_like(by_key[key].shown)
                yield held, raw

        if raws:
            upload(self._device, pairs(), max(raw.num_bytes for _, raw in raws))
        for weight in weights:
            assert weight.held is not None
            weight.applied = ()
            if not self._can_leave:
                weight.home = weight.held  # it never leaves
            self.bring_up_to_date(weight)

    def _hold(self, weight: Weight, original: Tensor) -> None:
        if self._device.holds(original):
            weight.home = weight.held = original
        else:
            weight.held = self._device.empty_like(weight.shown)
            self._device.copy(None, weight.held, original)
            if not self._can_leave:
                weight.home = weight.held  # it never leaves
            elif weight.home is None and self._host_weights.is_view(weight.key):
                weight.home = original
        weight.applied = ()
        self.bring_up_to_date(weight)

    def _take_back(self, block: Block, homes: Mapping[str, Tensor | None]) -> None:
        """Forget what came, also originals that had just come to stay; `homes` is where the file's weights were."""
        for weight in block.weights:
            if self._device.has_own_memory and not self._can_leave and weight.key in homes:
                weight.home = homes[weight.key]
            weight.held, weight.applied = None, ()
            weight.show(weight.home)

    def let_go(self, block: Block, *, into_ram: bool = True) -> None:
        """Without `into_ram` what the file can give again goes nowhere."""
        if not block.is_there:
            return
        names = () if into_ram else self._host_weights.names
        for weight in block.weights:
            if (weight.home is None and weight.key not in names) or (
                weight.home is not None and weight.home.device.type != "cpu"
            ):
                weight.home = self._host_weights.copy_in_ram(weight)
            weight.show(weight.home)
            weight.held = weight.below = None
            weight.applied = ()
        block.is_there = False

    # --- patches of the use ------------------------------------------------------------------------------------------

    def apply_patches(self) -> None:
        """Let everything here carry the patches of now; all of them or, when that fails, none."""
        if self._patches.are_applied:
            return
        try:
            for key, weight in self._weights.items():
                if weight.held is not None and (weight.applied or key in self._patches.of_use):
                    self.bring_up_to_date(weight)
        except BaseException:
            self._undo_patches()
            raise
        self._patches.are_applied = True

    def _undo_patches(self) -> None:
        """Not all of the patches could be applied: have none, so that the next call does not take them for applied."""
        self._patches.want({}, None)
        for weight in self._weights.values():
            if weight.held is not None:
                self.bring_up_to_date(weight)
        self._patches.are_applied = True

    def bring_up_to_date(self, weight: Weight) -> None:
        """Let what the device holds carry the patches of now."""
        wanted = self._patches.of_use.get(weight.key, ())
        assert weight.held is not None
        if not same_patches(weight.applied, wanted):
            if weight.applied:
                self._put_original_back(weight)
                weight.applied = ()
            if wanted:
                self._put_patched(weight, wanted)
            weight.applied = wanted
        weight.show(weight.held)

    def _put_original_back(self, weight: Weight) -> None:
        original = self._host_weights.original(weight.key)
        if self._device.holds(original) or not self._can_leave:
            weight.held = original
            return
        assert weight.held is not None
        self._device.copy(None, weight.held, original)  # into the memory of the patched one, which is ours alone

    def _put_patched(self, weight: Weight, entries: Sequence[WeightPatch]) -> None:
        assert weight.held is not None
        if self._device.has_own_memory and weight.held is not weight.home:
            weight.held.copy_(self.patched(entries, weight.held, weight.key))
        else:
            weight.held = self._patched_beside(entries, weight)

    def _patched_beside(self, entries: Sequence[WeightPatch], weight: Weight) -> Tensor:
        """In memory of its own on the device."""
        assert weight.held is not None
        changed = self.patched(entries, weight.held, weight.key)
        if not self._device.charges_blocks:
            return changed
        return self._device.empty_like(changed).copy_(changed)

    def patched(self, entries: Sequence[WeightPatch], weight: Tensor, key: str) -> Tensor:
        """A new tensor where `weight` lies. Raises `OutOfMemory`."""
        rounded: Dtype | None = getattr(self._module, "patched_dtype", None)
        return self._patches.patched(entries, weight, key, rounded)

    # --- patches of hooks --------------------------------------------------------------------------------------------

    def put_hooks_on(self, weight: Weight, ready: Tensor | None) -> Tensor:
        """Lay what hooks make of a weight over it: `ready` where that is known."""
        assert weight.held is not None
        hooked = self._patched_beside(self._patches.of_hooks[weight.key], weight) if ready is None else ready
        weight.below, weight.held = weight.held, hooked
        weight.show(hooked)
        return hooked

    def take_hooks_off(self) -> None:
        for key in self._patches.of_hooks:
            weight = self._weights[key]
            if weight.below is not None:
                weight.held, weight.below = weight.below, None
                weight.show(weight.held)
        self._patches.want_hooks({}, None)
