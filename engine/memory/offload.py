"""Weights of one torch module on their way between RAM and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.memory.weight_patches import PatchedWeights, WeightPatch


class ModuleWeights:
    """A module as the pool sees it (`model_pool.Resident`): sizes in bytes, and two places to be."""

    def __init__(self, name: str, module: torch.nn.Module, *, load_device: str, offload_device: str) -> None:
        self.name = name
        self.module = module
        self.load_device = load_device
        self.offload_device = offload_device
        self._patched = PatchedWeights(module, keep_on=offload_device)
        tensors = (*module.parameters(), *module.buffers())
        self.size_bytes = sum(item.nbytes for item in tensors)

    @property
    def loaded_bytes(self) -> int:
        """Bytes on the load device now."""
        device = next(self.module.parameters()).device
        return self.size_bytes if _same(device, torch.device(self.load_device)) else 0

    def load(self) -> None:
        if not self.loaded_bytes:
            self.module.to(self.load_device)

    def unload(self) -> None:
        """To the off-load device, with the original weights."""
        self._patched.undo(self.offload_device)
        if self.load_device != self.offload_device:
            self.module.to(self.offload_device)

    def patch(self, patches: Mapping[str, Sequence[WeightPatch]], patches_id: object) -> None:
        self._patched.apply(patches, patches_id)

    def patch_hooks(self, patches: Mapping[str, Sequence[WeightPatch]], hooks_id: object, *, keep: bool) -> None:
        self._patched.apply_hooks(patches, hooks_id, keep=keep)

    def undo_hooks(self) -> None:
        self._patched.undo_hooks()

    def original_weight(self, key: str) -> Any:
        return self._patched.original(key)


def _same(first: torch.device, second: torch.device) -> bool:
    return first.type == second.type and (first.index or 0) == (second.index or 0)
