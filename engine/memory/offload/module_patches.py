"""Patches of one model's weights: those of its use, and those of hooks on top of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from darkroom.engine.memory.device import Device
from darkroom.engine.memory.offload.block_placement import BlockPlacement
from darkroom.engine.memory.offload.blocks import Block
from darkroom.engine.memory.offload.device_weights import DeviceWeights
from darkroom.engine.memory.offload.layers import Layers
from darkroom.engine.memory.offload.patching import WantedPatches, patching_bytes
from darkroom.engine.memory.offload.weight import Weight
from darkroom.engine.memory.transfer_streams import TransferStreams
from darkroom.engine.memory.weight_patches import Patches


class ModulePatches:
    """Patching of one model as its uses ask for it."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        device: Device,
        streams: TransferStreams,
        wanted: WantedPatches,
        copies: DeviceWeights,
        layers: Layers,
        placement: BlockPlacement,
    ) -> None:
        self._weights = weights
        self._device = device
        self._streams = streams
        self._wanted = wanted
        self._device_weights = copies
        self._layers = layers
        self._placement = placement

    @property
    def now(self) -> tuple[Patches, object]:
        """Arguments of the last `patch`."""
        return self._wanted.of_use, self._wanted.use_id

    @property
    def hooks_now(self) -> tuple[Patches, object]:
        """Arguments of the last `patch_hooks`."""
        return self._wanted.of_hooks, self._wanted.hooks_id

    @property
    def room_bytes(self) -> int:
        """Bytes on the device to patch or unpack a weight, also while an offloaded layer computes."""
        return max(self._wanted.room_bytes, self._layers.unpacking_bytes)

    def patch(self, patches: Patches, patches_id: object) -> None:
        """Apply exactly these patches; only weights whose patches changed are touched.

        The same id as before means the same patches.
        """
        self.want(patches, patches_id)
        self.apply()

    def want(self, patches: Patches, patches_id: object) -> None:
        """Set the patches that `apply` and `ModuleWeights.load` apply."""
        self.undo_hooks()
        self._wanted.want(patches, patches_id)
        self._layers.patches_changed()

    def apply(self) -> None:
        """Apply the wanted patches to all loaded weights. Raises `OutOfMemory`."""
        self._device_weights.apply_patches()

    def patch_hooks(self, patches: Patches, hooks_id: object, *, keep: bool) -> None:
        """Apply these patches on top of the others, in place of those of the last call.

        With `keep` the patched weights are cached until the use ends. Raises `OutOfMemory`.
        """
        if hooks_id == self._wanted.hooks_id:
            return
        needed_bytes, _ = self.hooking_bytes(patches, hooks_id)
        self._device_weights.unhook()
        self._wanted.want_hooks(patches, hooks_id)
        ready = self._device_weights.cached_hooks.get(hooks_id, {})
        spare_bytes = self._device.free_bytes() - needed_bytes if needed_bytes else math.inf
        try:
            made = self._hook(ready, spare_bytes) if self._wanted.of_hooks else {}
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
        for block in self._placement.blocks:
            for weight in block.weights if block.is_loaded else ():
                if weight.key not in self._wanted.of_hooks or weight.is_patched_on_the_way:
                    continue
                can_go = self._placement.can_go(block)
                if weight.key not in ready and can_go and weight.in_module.nbytes > spare_bytes:
                    leaving.append(block)
                    self._device_weights.offload(block)
                    for other in block.weights:
                        made.pop(other.key, None)
                    spare_bytes += block.size_bytes
                    break
                made[weight.key] = self._device_weights.hook(weight, ready.get(weight.key))
                spare_bytes -= 0 if weight.key in ready else weight.in_module.nbytes
        self._placement.offload(leaving)
        return made

    def hooking_bytes(self, patches: Patches, hooks_id: object) -> tuple[int, int]:
        """Return the least and the best bytes free on the device to compute with these patches on top of the others.

        The best leave room for all hooked weights beside the originals.
        """
        if hooks_id == self._wanted.hooks_id or not self._device.has_own_memory or not any(patches.values()):
            return 0, 0
        weights = [self._weights[key] for key in patches]
        patching = max(self.room_bytes, *(patching_bytes(weight) for weight in weights))
        buffer_bytes = max(0, self._layers.block_bytes - self._streams.buffers_bytes)
        least = self._layers.working_bytes + patching + buffer_bytes
        if hooks_id in self._device_weights.cached_hooks:
            return least, least
        beside = (weight.loaded for weight in weights if not weight.is_patched_on_the_way)
        return least, least + sum(tensor.nbytes for tensor in beside if tensor is not None)

    def undo_hooks(self) -> None:
        """Undo the patches of hooks and forget the cached weights."""
        self._device_weights.unhook()
        self._layers.patches_changed()
        self._device_weights.cached_hooks.clear()
