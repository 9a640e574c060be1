"""Weights of one torch module, as the pool uses them.

A module is divided into blocks (`blocks.py`), one for each layer that has weights of its own. The original of a weight
(`host_weights.py`) is a tensor in RAM, perhaps a view of the mapped file, or nothing while the file can give it again.
On the device is a copy of it (`device_weights.py`), patched where patches ask for that (`patching.py`); freeing it
undoes them. Where a model computes on the CPU (or never leaves its device) it computes with the original itself, unless
that is patched.

A block that is offloaded is streamed while its layer computes (`layers.py`), through a cast buffer, and patched on the
way by the same arithmetic. So is a block stored in another type than it computes in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import nn

from engine.memory.device import Device
from engine.memory.offload.blocks import Block, divide
from engine.memory.offload.device_weights import DeviceWeights
from engine.memory.offload.host_weights import HostWeights, WeightSource
from engine.memory.offload.layers import Layers
from engine.memory.offload.patching import WantedPatches, patching_bytes
from engine.memory.plan import choose_blocks
from engine.memory.transfer_streams import PinnedMemory, TransferStreams
from engine.memory.weight_patches import Patches, same_patches


class ModuleWeights:
    """A module as the pool sees it (`resident.Resident`).

    `rests_in_ram`: it leaves the device when others need the room. `compute_dtype` is what its floating point weights
    are cast to while a layer computes, unless None. A module may say in `patched_dtype` to which type its patched
    weights are rounded.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        *,
        device: Device | None = None,
        streams: TransferStreams | None = None,
        pinned: PinnedMemory | None = None,
        rests_in_ram: bool = True,
        source: WeightSource | None = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.name = name
        self.module = module
        self.device = device = Device() if device is None else device
        self.streams = streams = TransferStreams(device, 0) if streams is None else streams
        self.can_leave = can_leave = device.has_own_memory and rests_in_ram
        self._own_compute_dtype = compute_dtype
        self._blocks = blocks = list(divide(module, device.holds))
        self._weights = weights = {weight.key: weight for block in blocks for weight in block.weights}
        self.size_bytes = sum(block.size_bytes for block in blocks)
        self.fixed_bytes = sum(block.size_bytes for block in blocks if not block.is_streamable)
        self._host_weights = homes = HostWeights(
            name, weights, device, can_leave=can_leave, source=source, pinned=pinned
        )
        self._patches = patches = WantedPatches(weights, device, homes)
        self._device_weights = copies = DeviceWeights(
            name, module, weights, device, homes, patches, can_leave=can_leave
        )
        self._layers = Layers(
            name, blocks, device, streams, patches, copies, can_leave=can_leave, compute_dtype=compute_dtype
        )
        self._layers.arrange_hooks()

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def load_device(self) -> str:
        return self.device.torch_name

    @property
    def offload_device(self) -> str:
        return "cpu" if self.can_leave else self.device.torch_name

    @property
    def working_bytes(self) -> int:
        """Of the use in hand, charged at each block where somebody counts."""
        return self._layers.working_bytes

    @working_bytes.setter
    def working_bytes(self, num_bytes: int) -> None:
        self._layers.working_bytes = num_bytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the blocks that are on the device now."""
        return sum(block.size_bytes for block in self._blocks if block.is_there)

    @property
    def block_bytes(self) -> int:
        """What the largest block takes while it is brought over."""
        return self._layers.block_bytes

    @property
    def conversion_bytes(self) -> int:
        """What it takes on the device, besides its weights, to load those that lack."""
        if not self.device.has_own_memory or all(block.is_there for block in self._blocks):
            return 0
        return self._conversion_bytes

    @cached_property
    def _conversion_bytes(self) -> int:
        return self._host_weights.conversion_bytes()

    @property
    def patching_bytes(self) -> int:
        """What it takes on the device to patch a weight, also while a layer computes whose weights are away."""
        return self._patches.room_bytes

    @property
    def patched_copy_bytes(self) -> int:
        """What patched weights will take more than now, beside originals that stay on the device."""
        return max(0, self._device_weights.wanted_patched_bytes - self._device_weights.patched_bytes)

    @property
    def casts(self) -> bool:
        """Whether blocks that are there pass through the buffers all the same."""
        return self._layers.casts

    @property
    def more_bytes(self) -> int:
        """What it takes on its device beyond its size: patched weights beside originals that never leave; hooks'."""
        if not self.device.has_own_memory:
            return 0
        return self._device_weights.patched_bytes + self._device_weights.hooked_bytes

    @property
    def ram_bytes(self) -> int:
        """Bytes of homes in RAM, and where it computes there, of patched weights beside them.

        Views of a mapped file do not count, nor what is only to be read again.
        """
        if self.device.has_own_memory:
            return self._host_weights.ram_bytes
        return self._host_weights.ram_bytes + self._device_weights.patched_bytes + self._device_weights.hooked_bytes

    @property
    def droppable_bytes(self) -> int:
        """What `drop` would give back."""
        return self._host_weights.droppable_bytes

    # --- places ------------------------------------------------------------------------------------------------------

    def load(self, room: int | None = None) -> None:
        """Bring as many blocks as `room` bytes allow (None: all), and let the others be away. Raises `OutOfMemory`."""
        movable = [block for block in self._blocks if block.is_streamable]
        comes = [True] * len(movable)
        if room is not None and room < self.size_bytes:
            sizes, is_there = [block.size_bytes for block in movable], [block.is_there for block in movable]
            comes = choose_blocks(sizes, is_there, room - self.fixed_bytes)
        stay_away = [
            block
            for block, wanted in zip(movable, comes, strict=True)
            if not wanted or self._is_hooked_on_the_way(block)
        ]
        away = {id(block) for block in stay_away}
        coming = [block for block in self._blocks if not block.is_there and id(block) not in away]
        if stay_away or coming:
            self._host_weights.check()
        try:
            for block in stay_away:
                self._device_weights.let_go(block)
            self._device_weights.apply_patches()
            self._device_weights.hold(coming)
            self._host_weights.bring_to_ram(stay_away)
        finally:
            self._layers.arrange_hooks()

    def _is_hooked_on_the_way(self, block: Block) -> bool:
        """Whether what hooks make of a block is made anew for each call, which another use must not change."""
        return not block.is_there and any(weight.key in self._patches.of_hooks for weight in block.weights)

    def unload(self, num_bytes: int | None = None, *, into_ram: bool = True) -> int:
        """Let at least so many bytes leave the device, small blocks first; all of them without a number.

        Without `into_ram` what the file can give again is forgotten, for `load` to read.

        Returns how many left. A model that never leaves its device only gives its patches up.
        """
        before = self.loaded_bytes
        self.undo_hooks()
        if not self.can_leave:
            if num_bytes is None:
                self.patch({}, None)
            return 0
        leaving = [block for block in self._blocks if block.is_there]
        if num_bytes is not None and num_bytes <= before - self.fixed_bytes:
            leaving = sorted((block for block in leaving if block.is_streamable), key=lambda block: block.size_bytes)
        left = 0
        for block in leaving:
            if num_bytes is not None and left >= num_bytes:
                break
            self._device_weights.let_go(block, into_ram=into_ram)
            left += block.size_bytes
        self._layers.arrange_hooks()
        return left

    def offload_in_use(self, num_bytes: int) -> int:
        """While in use: let at least so many bytes leave, to be brought while their layers compute. What left."""
        left = 0
        leaving: list[Block] = []
        for block in sorted(self._blocks, key=lambda block: block.size_bytes):
            if left < num_bytes and block.is_there and self._can_go(block):
                leaving.append(block)
                left += block.size_bytes
        self._send_away(leaving)
        return left

    def _send_away(self, blocks: Sequence[Block]) -> None:
        """While in use: what is patched may have no original in RAM, which is needed there from now on."""
        for block in blocks:
            self._device_weights.let_go(block)
        self._host_weights.bring_to_ram(blocks)
        self._layers.arrange_hooks()

    def _can_go(self, block: Block) -> bool:
        return self.can_leave and block.is_streamable

    def drop(self) -> int:
        """Forget the homes that the file can give again; `load` reads them. Returns the bytes of RAM given back."""
        return self._host_weights.drop(self._blocks)

    def release(self) -> None:
        """The pool has forgotten this model: leave nothing in its layers that would hold it."""
        self._layers.remove_hooks()

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Compute in that type from the next call on; None: as it was made to."""
        dtype = self._own_compute_dtype if dtype is None else dtype
        if dtype != self._layers.compute_dtype:
            self._layers.compute_dtype = dtype
            self._layers.arrange_hooks()

    # --- patches -----------------------------------------------------------------------------------------------------

    @property
    def patches_now(self) -> tuple[Patches, object]:
        """What `patch` was called with last."""
        return self._patches.of_use, self._patches.use_id

    @property
    def hooks_now(self) -> tuple[Patches, object]:
        """What `patch_hooks` was called with last."""
        return self._patches.of_hooks, self._patches.hooks_id

    def patch(self, patches: Patches, patches_id: object) -> None:
        """Carry exactly these patches; only weights whose patches changed are touched.

        The same id as before means that they do already.
        """
        self.want_patches(patches, patches_id)
        self.apply_patches()

    def want_patches(self, patches: Patches, patches_id: object) -> None:
        """As `patch`, but what is on the device gets them only from `apply_patches`, or from `load`."""
        self.undo_hooks()
        self._patches.want(patches, patches_id)

    def apply_patches(self) -> None:
        self._device_weights.apply_patches()

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool) -> None:
        """Carry these patches on top of the others, instead of those of the last call. With `keep` what they give is
        remembered until the use ends.
        """
        if hooks_id == self._patches.hooks_id:
            return
        needed_bytes, _ = self.hooking_bytes(patches, hooks_id)
        self._device_weights.take_hooks_off()
        self._patches.want_hooks(patches, hooks_id)
        ready = self._device_weights.remembered.get(hooks_id, {})
        spare_bytes = self.device.free_bytes() - needed_bytes if needed_bytes else math.inf
        try:
            made = self._put_hooks_on(ready, spare_bytes) if self._patches.of_hooks else {}
        except BaseException:
            self._device_weights.take_hooks_off()  # else the next call of that id would take them for there
            raise
        if keep and not ready:
            self._device_weights.remembered[hooks_id] = made

    def _put_hooks_on(self, ready: Mapping[str, torch.Tensor], spare_bytes: float) -> dict[str, torch.Tensor]:
        """What they made of the weights here, those of `ready` made before. Blocks for which there is no room leave:
        their weights are patched on the way instead.
        """
        made: dict[str, torch.Tensor] = {}
        leaving: list[Block] = []
        for block in self._blocks:
            for weight in block.weights if block.is_there else ():
                if weight.key not in self._patches.of_hooks:
                    continue
                if weight.key not in ready and self._can_go(block) and weight.shown.nbytes > spare_bytes:
                    leaving.append(block)
                    self._device_weights.let_go(block)
                    for other in block.weights:
                        made.pop(other.key, None)
                    spare_bytes += block.size_bytes
                    break
                made[weight.key] = self._device_weights.put_hooks_on(weight, ready.get(weight.key))
                spare_bytes -= 0 if weight.key in ready else weight.shown.nbytes
        self._send_away(leaving)
        return made

    def hooking_bytes(self, patches: Patches, hooks_id: object) -> tuple[int, int]:
        """What has to be free on the device so that the model can compute with these patches on top of the others, and
        what is best free: room for all hooked weights beside the originals.
        """
        if hooks_id == self._patches.hooks_id or not self.device.has_own_memory or not any(patches.values()):
            return 0, 0
        weights = [self._weights[key] for key in patches]
        patching = max(self.patching_bytes, *(patching_bytes(weight.shown) for weight in weights))
        least = self.working_bytes + patching + max(0, self.block_bytes - self.streams.buffers_bytes)
        if hooks_id in self._device_weights.remembered:
            return least, least
        return least, least + sum(weight.held.nbytes for weight in weights if weight.held is not None)

    def undo_hooks(self) -> None:
        """Take the second layer off and forget what was remembered of it."""
        self._device_weights.take_hooks_off()
        self._device_weights.remembered.clear()

    def end_use(self) -> None:
        """Nothing computes any more: undo what was for the use in hand alone.

        Torch leaves its hooks out when a layer ends by what is no `Exception`.
        """
        for block in self._blocks:
            if block.covered or block.stream is not None:
                block.uncover()
        self.undo_hooks()

    def original_weight(self, key: str) -> torch.Tensor:
        """The weight (or buffer) without patches, in RAM if the model can leave its device.

        Raises KeyError for a name the module does not have.
        """
        return self._host_weights.original(key)

    def current_weight(self, key: str) -> torch.Tensor:
        """The weight with the patches and hooks of now, wherever it is. Raises KeyError as `original_weight`."""
        weight = self._weights[key]
        if weight.held is not None:
            return weight.held
        tensor = self._host_weights.original(key).to(self.load_device)
        for entries in self._patches.layers_of(key):
            tensor = self._device_weights.patched(entries, tensor, key)
        return tensor

    def check_integrity(self) -> None:
        """Raises AssertionError when what the module shows is not what is known of it."""
        for block in self._blocks:
            assert not block.covered and block.stream is None, f"{self.name}: a layer still computes"
            for weight in block.weights:
                assert block.is_there == (weight.held is not None), f"{self.name} {weight.key}: half there"
                shown = weight.home if weight.held is None else weight.held
                if shown is not None:
                    same = weight.shown.data_ptr() == shown.data_ptr()
                    assert same, f"{self.name} {weight.key}: the module sees another tensor"
                wanted = self._patches.of_use.get(weight.key, ())
                is_so = weight.held is None or not self._patches.are_applied or same_patches(weight.applied, wanted)
                assert is_so, f"{self.name} {weight.key}: patched otherwise"
