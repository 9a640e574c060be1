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

from functools import cached_property

import torch
from torch import nn

from darkroom.engine.memory.device import Device
from darkroom.engine.memory.offload.block_placement import BlockPlacement
from darkroom.engine.memory.offload.blocks import divide
from darkroom.engine.memory.offload.device_weights import DeviceWeights
from darkroom.engine.memory.offload.host_weights import HostWeights, WeightSource
from darkroom.engine.memory.offload.layers import Layers
from darkroom.engine.memory.offload.module_fit import fits, foreign_tensors, put_back
from darkroom.engine.memory.offload.module_patches import ModulePatches
from darkroom.engine.memory.offload.patching import WantedPatches
from darkroom.engine.memory.offload.weight_values import WeightValues
from darkroom.engine.memory.transfer_streams import PinnedMemory, TransferStreams
from darkroom.engine.memory.weight_patches import same_patches


class ModuleWeights:
    """Weights of one module as a model of the pool (`resident.Resident`).

    `rests_in_ram`: it is offloaded to RAM when others need the room. `compute_dtype` is the type its floating point
    weights are cast to while a layer computes, unless None. An attribute `patched_dtype` of the module is the type to
    which its patched weights are rounded.

    `patches` patches them, `layers` has how they compute, `values` what they are.
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
        is_view = _never if source is None else source.is_view
        self._blocks = blocks = list(divide(module, device.holds, is_view))
        self._weights = weights = {weight.key: weight for block in blocks for weight in block.weights}
        self._host_weights = homes = HostWeights(name, weights, device, source=source, pinned=pinned)
        self._wanted = wanted = WantedPatches(weights, device, homes)
        self._device_weights = copies = DeviceWeights(name, module, weights, device, homes, wanted, can_leave=can_leave)
        self.layers = layers = Layers(
            name, blocks, device, streams, wanted, copies, can_leave=can_leave, compute_dtype=compute_dtype
        )
        self._placement = placement = BlockPlacement(blocks, homes, copies, wanted, layers, can_leave=can_leave)
        self.patches = ModulePatches(weights, device, streams, wanted, copies, layers, placement)
        self.values = WeightValues(weights, self.load_device, homes, copies, wanted)
        self.size_bytes = placement.size_bytes
        self.fixed_bytes = placement.fixed_bytes
        layers.arrange_hooks()

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def load_device(self) -> str:
        return self.device.torch_name

    @property
    def offload_device(self) -> str:
        return "cpu" if self.can_leave else self.device.torch_name

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the blocks that are loaded now."""
        return self._placement.loaded_bytes

    @property
    def conversion_bytes(self) -> int:
        """Bytes on the device, besides its weights, to load those that are missing."""
        if not self.device.has_own_memory or self._placement.is_whole:
            return 0
        return self._conversion_bytes

    @cached_property
    def _conversion_bytes(self) -> int:
        return self._host_weights.conversion_bytes()

    @property
    def patched_copy_bytes(self) -> int:
        """Bytes that patched weights will take in addition, beside originals that stay on the device."""
        return max(0, self._device_weights.wanted_patched_bytes - self._device_weights.patched_bytes)

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
        self._placement.load(room)

    def unload(self, num_bytes: int | None = None, *, into_ram: bool = True) -> int:
        """Offload at least `num_bytes`, small blocks first; all of them without a number. Return the bytes offloaded.

        Without `into_ram` what the file can give again is not copied, for `load` to read; nor where reading it took no
        longer than the copy and the way back would. A model that never leaves its device only undoes its patches.
        """
        self.patches.undo_hooks()
        if self.can_leave:
            return self._placement.offload_idle(num_bytes, into_ram=into_ram)
        if num_bytes is None:
            self.patches.patch({}, None)
        return 0

    def offload_in_use(self, num_bytes: int) -> int:
        """Offload at least `num_bytes` while in use, to be streamed from then on; return the bytes offloaded."""
        return self._placement.offload_in_use(num_bytes)

    def drop(self) -> int:
        """Free the RAM of originals that the file can give again, for `load` to read; return the bytes freed."""
        return self._host_weights.drop(self._blocks)

    def release(self) -> None:
        """Remove the hooks of the layers, which would keep a removed model alive."""
        self.layers.remove_hooks()

    def end_use(self) -> None:
        """Undo what was for the current use alone, after its computation.

        Torch skips hooks when a layer ends by an exception that is no `Exception`.
        """
        for block in self._blocks:
            if block.is_streamed:
                block.end_stream()
        self.patches.undo_hooks()

    def fits_module(self) -> bool:
        """Return False where the module got or lost weights, or tensors of its own, since its blocks were made.

        Not while a layer computes.
        """
        return fits(self.module, self._weights)

    def leave_module(self) -> None:
        """Give the module its originals back in RAM, but for tensors that it got from elsewhere meanwhile."""
        foreign = foreign_tensors(self._weights)
        self.unload()
        self.release()
        put_back(foreign)

    def check_integrity(self) -> None:
        """Raise AssertionError when the states of weights contradict each other or what is wanted of them."""
        for block in self._blocks:
            assert not block.is_streamed, f"{self.name}: a layer still computes"
            for weight in block.weights:
                weight.check_integrity()
                assert block.is_loaded == weight.is_loaded, f"{self.name} {weight.key}: half loaded"
                wanted = self._wanted.of_use.get(weight.key, ())
                is_settled = weight.is_loaded and self._device_weights.carries_wanted
                is_unsettled = not is_settled or weight.is_patched_on_the_way
                assert is_unsettled or same_patches(weight.applied, wanted), (
                    f"{self.name} {weight.key}: patched otherwise"
                )


def _never(key: str) -> bool:
    """Return False: without a file no weight is a view."""
    return False
