"""Placement of the blocks of a model: which are loaded, and which offloaded."""

from __future__ import annotations

from collections.abc import Sequence

from darkroom.engine.memory.offload.blocks import Block
from darkroom.engine.memory.offload.device_weights import DeviceWeights
from darkroom.engine.memory.offload.host_weights import HostWeights
from darkroom.engine.memory.offload.layers import Layers
from darkroom.engine.memory.offload.patching import WantedPatches
from darkroom.engine.memory.plan import choose_blocks


class BlockPlacement:
    """Placement of one model's blocks. A model that cannot leave its device is loaded, and never offloaded."""

    def __init__(
        self,
        blocks: Sequence[Block],
        homes: HostWeights,
        copies: DeviceWeights,
        patches: WantedPatches,
        layers: Layers,
        *,
        can_leave: bool,
    ) -> None:
        self.blocks = blocks
        self.size_bytes = sum(block.size_bytes for block in blocks)
        self.fixed_bytes = sum(block.size_bytes for block in blocks if not block.is_streamable)
        self._host_weights = homes
        self._device_weights = copies
        self._patches = patches
        self._layers = layers
        self._can_leave = can_leave

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the blocks that are loaded now."""
        return sum(block.size_bytes for block in self.blocks if block.is_loaded)

    @property
    def is_whole(self) -> bool:
        """True where all blocks are loaded."""
        return all(block.is_loaded for block in self.blocks)

    def load(self, room: int | None) -> None:
        """Load as many blocks as `room` bytes allow (None: all), and offload the others. Raises `OutOfMemory`."""
        movable = [block for block in self.blocks if block.is_streamable]
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
        coming = [block for block in self.blocks if id(block) not in away and not block.is_loaded]
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

    def offload_idle(self, num_bytes: int | None, *, into_ram: bool) -> int:
        """Offload at least `num_bytes` of a model that is not in use, small blocks first; all of them without a number.

        Return the bytes offloaded. For `into_ram` see `ModuleWeights.unload`.
        """
        leaving = [block for block in self.blocks if block.is_loaded]
        if num_bytes is not None and num_bytes <= self.loaded_bytes - self.fixed_bytes:
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
        for block in sorted(self.blocks, key=lambda block: block.size_bytes):
            if left < num_bytes and self.can_go(block) and block.is_loaded:
                leaving.append(block)
                left += block.size_bytes
        self.offload(leaving)
        return left

    def offload(self, blocks: Sequence[Block]) -> None:
        """Offload blocks while in use, and read the originals that only the file has: they are streamed from RAM."""
        for block in blocks:
            self._device_weights.offload(block)
        self._host_weights.bring_to_ram(blocks)
        self._layers.arrange_hooks()

    def can_go(self, block: Block) -> bool:
        """Return True for a block that may be offloaded while it is in use."""
        return self._can_leave and block.is_streamable
