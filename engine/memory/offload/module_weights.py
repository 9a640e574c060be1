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
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import nn

from engine.memory.device import Device
from engine.memory.offload.blocks import Block, divide
from engine.memory.offload.device_weights import DeviceWeights
from engine.memory.offload.host_weights import HostWeights, WeightSource
from engine.memory.offload.layers import Layers
from engine.memory.offload.packing import unpacked
from engine.memory.offload.patching import WantedPatches, patching_bytes
from engine.memory.offload.weight import Weight
from engine.memory.plan import choose_blocks
from engine.memory.transfer_streams import PinnedMemory, TransferStreams
from engine.memory.weight_patches import Patches, WeightPatch, same_patches


class ModuleWeights:
    """Weights of one module as a model of the pool (`resident.Resident`).

    `rests_in_ram`: it is offloaded to RAM when others need the room. `compute_dtype` is the type its floating point
    weights are cast to while a layer computes, unless None. An attribute `patched_dtype` of the module is the type to
    which its patched weights are rounded.
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
        is_view = _never if source is None else source.is_view
        self._blocks = blocks = list(divide(module, device.holds, is_view))
        self._weights = weights = {weight.key: weight for block in blocks for weight in block.weights}
        self.size_bytes = sum(block.size_bytes for block in blocks)
        self._unpacking_bytes = max(
            (item.packing.working_bytes for item in weights.values() if item.packing), default=0
        )
        self.fixed_bytes = sum(block.size_bytes for block in blocks if not block.is_streamable)
        self._host_weights = homes = HostWeights(name, weights, device, source=source, pinned=pinned)
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
        """Working memory of the current use, charged at each block where the device counts."""
        return self._layers.working_bytes

    @working_bytes.setter
    def working_bytes(self, num_bytes: int) -> None:
        self._layers.working_bytes = num_bytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the blocks that are loaded now."""
        return sum(block.size_bytes for block in self._blocks if block.is_loaded)

    @property
    def block_bytes(self) -> int:
        """Buffer bytes of the largest block while it is streamed."""
        return self._layers.block_bytes

    @property
    def conversion_bytes(self) -> int:
        """Bytes on the device, besides its weights, to load those that are missing."""
        if not self.device.has_own_memory or all(block.is_loaded for block in self._blocks):
            return 0
        return self._conversion_bytes

    @cached_property
    def _conversion_bytes(self) -> int:
        return self._host_weights.conversion_bytes()

    @property
    def patching_bytes(self) -> int:
        """Bytes on the device to patch or unpack a weight, also while an offloaded layer computes."""
        return max(self._patches.room_bytes, self._layers.unpacking_bytes)

    @property
    def patched_copy_bytes(self) -> int:
        """Bytes that patched weights will take in addition, beside originals that stay on the device."""
        return max(0, self._device_weights.wanted_patched_bytes - self._device_weights.patched_bytes)

    @property
    def casts(self) -> bool:
        """True where loaded blocks pass through the buffers too."""
        return self._layers.casts

    @property
    def cast_bytes(self) -> int:
        """Bytes of the largest loaded block while it is cast into fresh memory."""
        return self._layers.cast_bytes

    @property
    def has_fixed_addresses(self) -> bool:
        """True where layers compute without a cast buffer, from weights that stay until they are moved or patched.

        Only then may their computation be recorded as a CUDA graph.
        """
        return self._layers.has_fixed_addresses

    @property
    def can_have_fixed_addresses(self) -> bool:
        """True where `has_fixed_addresses` is, or would be with direct casts."""
        return self._layers.can_have_fixed_addresses

    @property
    def more_bytes(self) -> int:
        """Bytes on its device beyond its size: patched weights beside originals that never leave, and hooked ones."""
        if not self.device.has_own_memory:
            return 0
        return self._device_weights.patched_bytes + self._device_weights.hooked_bytes

    @property
    def ram_bytes(self) -> int:
        """Bytes of originals in RAM and, where it computes there, of patched weights beside them.

        Views of a mapped file do not count.
        """
        if self.device.has_own_memory:
            return self._host_weights.ram_bytes
        return self._host_weights.ram_bytes + self._device_weights.patched_bytes + self._device_weights.hooked_bytes

    @property
    def droppable_bytes(self) -> int:
        """Bytes that `drop` would free."""
        return self._host_weights.droppable_bytes

    # --- places ------------------------------------------------------------------------------------------------------

    def load(self, room: int | None = None) -> None:
        """Load as many blocks as `room` bytes allow (None: all), and offload the others. Raises `OutOfMemory`."""
        movable = [block for block in self._blocks if block.is_streamable]
        comes = [True] * len(movable)
        if room is not None and room < self.size_bytes:
            sizes, is_loaded = [block.size_bytes for block in movable], [block.is_loaded for block in movable]
            comes = choose_blocks(sizes, is_loaded, room - self.fixed_bytes)
        stay_away = [
            block
            for block, wanted in zip(movable, comes, strict=True)
            if not wanted or self._is_hooked_on_the_way(block)
        ]
        away = {id(block) for block in stay_away}
        coming = [block for block in self._blocks if id(block) not in away and not block.is_loaded]
        if stay_away or coming:
            self._host_weights.check()
        try:
            for block in stay_away:
                self._device_weights.offload(block)
            self._device_weights.apply_patches()
            self._device_weights.load(coming)
            self._host_weights.bring_to_ram(stay_away)
        finally:
            self._layers.arrange_hooks()

    def _is_hooked_on_the_way(self, block: Block) -> bool:
        """Return True where hooks' patches are applied on the way in each call, which another use must not change."""
        return not block.is_loaded and any(weight.key in self._patches.of_hooks for weight in block.weights)

    def unload(self, num_bytes: int | None = None, *, into_ram: bool = True) -> int:
        """Offload at least `num_bytes`, small blocks first; all of them without a number. Return the bytes offloaded.

        Without `into_ram` what the file can give again is not copied, for `load` to read; nor where reading it took no
        longer than the copy and the way back would. A model that never leaves its device only undoes its patches.
        """
        before = self.loaded_bytes
        self.undo_hooks()
        if not self.can_leave:
            if num_bytes is None:
                self.patch({}, None)
            return 0
        leaving = [block for block in self._blocks if block.is_loaded]
        if num_bytes is not None and num_bytes <= before - self.fixed_bytes:
            leaving = sorted((block for block in leaving if block.is_streamable), key=lambda block: block.size_bytes)
        left = 0
        chosen: list[Block] = []
        for block in leaving:
            if num_bytes is not None and left >= num_bytes:
                break
            chosen.append(block)
            left += block.size_bytes
        self._device_weights.offload_all(chosen, into_ram=into_ram)
        self._layers.arrange_hooks()
        return left

    def offload_in_use(self, num_bytes: int) -> int:
        """Offload at least `num_bytes` while in use, to be streamed from then on; return the bytes offloaded."""
        left = 0
        leaving: list[Block] = []
        for block in sorted(self._blocks, key=lambda block: block.size_bytes):
            if left < num_bytes and self._can_go(block) and block.is_loaded:
                leaving.append(block)
                left += block.size_bytes
        self._offload_all(leaving)
        return left

    def _offload_all(self, blocks: Sequence[Block]) -> None:
        """Offload blocks while in use, and read the originals that only the file has: they are streamed from RAM."""
        for block in blocks:
            self._device_weights.offload(block)
        self._host_weights.bring_to_ram(blocks)
        self._layers.arrange_hooks()

    def _can_go(self, block: Block) -> bool:
        return self.can_leave and block.is_streamable

    def drop(self) -> int:
        """Free the RAM of originals that the file can give again, for `load` to read; return the bytes freed."""
        return self._host_weights.drop(self._blocks)

    def release(self) -> None:
        """Remove the hooks of the layers, which would keep a removed model alive."""
        self._layers.remove_hooks()

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Set the type of the computation from the next call on; None: the model's own."""
        dtype = self._own_compute_dtype if dtype is None else dtype
        if dtype != self._layers.compute_dtype:
            self._layers.compute_dtype = dtype
            self._layers.arrange_hooks()

    def cast_directly(self) -> Callable[[], None]:
        """Cast loaded weights into fresh memory, on the computing stream, until the function returned is called.

        The values are the same, but that no buffer is used, which is freed between uses.
        """
        self._layers.begin_direct_casts()
        return self._layers.end_direct_casts

    def use_as_stored(self, patches_of: Mapping[nn.Module, Mapping[str, Sequence[WeightPatch]]]) -> Callable[[], None]:
        """Let these layers compute with their weights as they are stored until the function returned is called.

        `patches_of` has, for each layer, the patches of packed weights, by their names, that its code applies itself.
        Its code gets other weights wherever they are not loaded or other patches are wanted: the usual, cast ones.
        """
        self._layers.use_as_stored(patches_of)
        layers = tuple(patches_of)
        return lambda: self._layers.end_use_as_stored(layers)

    # --- patches -----------------------------------------------------------------------------------------------------

    @property
    def patches_now(self) -> tuple[Patches, object]:
        """Arguments of the last `patch`."""
        return self._patches.of_use, self._patches.use_id

    @property
    def hooks_now(self) -> tuple[Patches, object]:
        """Arguments of the last `patch_hooks`."""
        return self._patches.of_hooks, self._patches.hooks_id

    def patch(self, patches: Patches, patches_id: object) -> None:
        """Apply exactly these patches; only weights whose patches changed are touched.

        The same id as before means the same patches.
        """
        self.want_patches(patches, patches_id)
        self.apply_patches()

    def want_patches(self, patches: Patches, patches_id: object) -> None:
        """Set the patches that `apply_patches` and `load` apply."""
        self.undo_hooks()
        self._patches.want(patches, patches_id)
        self._layers.patches_changed()

    def apply_patches(self) -> None:
        """Apply the wanted patches to all loaded weights. Raises `OutOfMemory`."""
        self._device_weights.apply_patches()

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool) -> None:
        """Apply these patches on top of the others, in place of those of the last call.

        With `keep` the patched weights are cached until the use ends. Raises `OutOfMemory`.
        """
        if hooks_id == self._patches.hooks_id:
            return
        needed_bytes, _ = self.hooking_bytes(patches, hooks_id)
        self._device_weights.unhook()
        self._patches.want_hooks(patches, hooks_id)
        ready = self._device_weights.cached_hooks.get(hooks_id, {})
        spare_bytes = self.device.free_bytes() - needed_bytes if needed_bytes else math.inf
        try:
            made = self._hook(ready, spare_bytes) if self._patches.of_hooks else {}
        except BaseException:
            self._device_weights.unhook()  # else the next call of that id would take them for applied
            raise
        self._layers.patches_changed()
        if keep and not ready:
            self._device_weights.cached_hooks[hooks_id] = made

    def _hook(self, ready: Mapping[str, torch.Tensor], spare_bytes: float) -> dict[str, torch.Tensor]:
        """Apply the patches of hooks to the loaded weights, and return the results; those of `ready` are used again.

        Blocks for which there is no room are offloaded: their weights are patched on the way instead.
        """
        made: dict[str, torch.Tensor] = {}
        leaving: list[Block] = []
        for block in self._blocks:
            for weight in block.weights if block.is_loaded else ():
                if weight.key not in self._patches.of_hooks or weight.is_patched_on_the_way:
                    continue
                if weight.key not in ready and self._can_go(block) and weight.in_module.nbytes > spare_bytes:
                    leaving.append(block)
                    self._device_weights.offload(block)
                    for other in block.weights:
                        made.pop(other.key, None)
                    spare_bytes += block.size_bytes
                    break
                made[weight.key] = self._device_weights.hook(weight, ready.get(weight.key))
                spare_bytes -= 0 if weight.key in ready else weight.in_module.nbytes
        self._offload_all(leaving)
        return made

    def hooking_bytes(self, patches: Patches, hooks_id: object) -> tuple[int, int]:
        """Return the least and the best bytes free on the device to compute with these patches on top of the others.

        The best leave room for all hooked weights beside the originals.
        """
        if hooks_id == self._patches.hooks_id or not self.device.has_own_memory or not any(patches.values()):
            return 0, 0
        weights = [self._weights[key] for key in patches]
        patching = max(self.patching_bytes, *(patching_bytes(weight) for weight in weights))
        least = self.working_bytes + patching + max(0, self.block_bytes - self.streams.buffers_bytes)
        if hooks_id in self._device_weights.cached_hooks:
            return least, least
        beside = (weight.loaded for weight in weights if not weight.is_patched_on_the_way)
        return least, least + sum(tensor.nbytes for tensor in beside if tensor is not None)

    def undo_hooks(self) -> None:
        """Undo the patches of hooks and forget the cached weights."""
        self._device_weights.unhook()
        self._layers.patches_changed()
        self._device_weights.cached_hooks.clear()

    def end_use(self) -> None:
        """Undo what was for the current use alone, after its computation.

        Torch skips hooks when a layer ends by an exception that is no `Exception`.
        """
        for block in self._blocks:
            if block.is_streamed:
                block.end_stream()
        self.undo_hooks()

    def original_weight(self, key: str) -> torch.Tensor:
        """Return the weight (or buffer) without patches, in RAM if the model can be offloaded.

        That of a packed one are its values, float32. Raises KeyError for an unknown name.
        """
        return self._host_weights.values(key)

    def current_weight(self, key: str) -> torch.Tensor:
        """Return the weight with the current patches and hooks. Raises KeyError for an unknown name."""
        weight = self._weights[key]
        if weight.packing is not None:
            return self._current_values(weight)
        if weight.loaded is not None:
            return weight.loaded
        tensor = self._host_weights.original(key).to(self.load_device)
        for entries in self._patches.layers_of(key):
            tensor = self._device_weights.patched(entries, tensor, key)
        return tensor

    def _current_values(self, weight: Weight) -> torch.Tensor:
        """Return the values of a packed weight with the current patches and hooks, float32."""
        if weight.is_patched_on_the_way:
            return self._patches.patched_values(self._host_weights.values(weight.key), weight.key)
        assert weight.packing is not None
        codes = weight.loaded
        if codes is None:
            codes = self._host_weights.original(weight.key).to(self.load_device)
            for entries in self._patches.layers_of(weight.key):
                codes = self._device_weights.patched(entries, codes, weight.key)
        return unpacked(weight.packing, codes, {})

    def fits_module(self) -> bool:
        """Return False where the module got or lost weights, or tensors of its own, since its blocks were made.

        Not while a layer computes.
        """
        found: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for path, layer in self.module.named_modules():
            for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"{path}.{name}" if path else name] = tensor
        return found.keys() == self._weights.keys() and all(weight.is_shown for weight in self._weights.values())

    def leave_module(self) -> None:
        """Give the module its originals back in RAM, but for tensors that it got from elsewhere meanwhile."""
        foreign = [
            (owner, name, tensor)
            for weight in self._weights.values()
            if not weight.is_shown
            for owner, name in weight.owners
            if (tensor := owner._buffers.get(name, owner._parameters.get(name))) is not None
        ]
        self.unload()
        self.release()
        for owner, name, tensor in foreign:
            if isinstance(tensor, nn.Parameter):
                owner._parameters[name] = tensor
            else:
                owner._buffers[name] = tensor

    def check_integrity(self) -> None:
        """Raise AssertionError when the states of weights contradict each other or what is wanted of them."""
        for block in self._blocks:
            assert not block.is_streamed, f"{self.name}: a layer still computes"
            for weight in block.weights:
                weight.check_integrity()
                assert block.is_loaded == weight.is_loaded, f"{self.name} {weight.key}: half loaded"
                wanted = self._patches.of_use.get(weight.key, ())
                is_settled = weight.is_loaded and self._device_weights.carries_wanted
                is_unsettled = not is_settled or weight.is_patched_on_the_way
                assert is_unsettled or same_patches(weight.applied, wanted), (
                    f"{self.name} {weight.key}: patched otherwise"
                )


def _never(key: str) -> bool:
    """Return False: without a file no weight is a view."""
    return False
