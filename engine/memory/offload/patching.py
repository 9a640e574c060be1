"""Patches wanted on a model, in two layers: those of the current use, and those of hooks on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from darkroom.engine.memory.device import Device, Dtype, Tensor
from darkroom.engine.memory.offload.host_weights import HostWeights
from darkroom.engine.memory.offload.packing import unpacked
from darkroom.engine.memory.offload.weight import Weight
from darkroom.engine.memory.weight_patches import Patches, WeightPatch, calculate_weight, patched, rounded_at_random

FLOAT32_BYTES = 4
NUM_FLOAT32_TO_PATCH = 3


class WantedPatches:
    """Wanted patches of one model, which `device_weights.py` applies. `version` counts the changes of the use's."""

    def __init__(self, weights: Mapping[str, Weight], device: Device, homes: HostWeights) -> None:
        self._weights = weights
        self._device = device
        self._host_weights = homes
        self.of_use: dict[str, tuple[WeightPatch, ...]] = {}
        self.use_id: object = None
        self.version = 0
        self.of_hooks: dict[str, Sequence[WeightPatch]] = {}
        self.hooks_id: object = None

    def want(self, patches: Patches, patches_id: object) -> None:
        """Set the patches of the use. The same id means the same patches. Raises KeyError for an unknown weight."""
        if patches_id is not None and patches_id == self.use_id:
            return
        wanted = {key: tuple(entries) for key, entries in patches.items() if entries}
        self._check(wanted)
        self.of_use, self.use_id = wanted, patches_id
        self.version += 1

    def want_hooks(self, patches: Patches, hooks_id: object) -> None:
        """Set the patches of hooks. Raises KeyError for an unknown weight."""
        wanted = {key: entries for key, entries in patches.items() if entries}
        self._check(wanted)
        self.of_hooks, self.hooks_id = wanted, hooks_id

    def _check(self, wanted: Mapping[str, object]) -> None:
        unknown = wanted.keys() - self._weights.keys()
        if unknown:
            raise KeyError(min(unknown))

    def layers_of(self, key: str) -> list[Sequence[WeightPatch]]:
        """Return the patches of a weight, layer by layer, in the order of their application."""
        return [layer for layer in (self.of_use.get(key), self.of_hooks.get(key)) if layer]

    @property
    def room_bytes(self) -> int:
        """Bytes on the device to patch a weight, also while an offloaded layer computes."""
        keys = (*self.of_use, *self.of_hooks)
        return max((patching_bytes(self._weights[key]) for key in keys), default=0)

    def patched(
        self, entries: Sequence[WeightPatch], weight: Tensor, key: str, rounded: Dtype | None, *, working_bytes: int = 0
    ) -> Tensor:
        """Return a new tensor where `weight` is, rounded to `rounded`. Raises `OutOfMemory`.

        `working_bytes` are charged where the device counts: a layer's, while it computes.
        """
        own = self._weights[key]
        if self._device.charges_blocks:
            self._device.begin_block(working_bytes + patching_bytes(own) - weight.nbytes)
        if own.packing is None:
            return patched(entries, weight, key, self._host_weights.values, rounded)
        values = calculate_weight(entries, unpacked(own.packing, weight, {}), key, self._host_weights.values)
        return rounded_at_random(own.packing.before_rounding(values), weight.dtype, key)

    def patched_values(self, values: Tensor, key: str, *, working_bytes: int = 0) -> Tensor:
        """Return the values of a weight that is patched on the way, with all patches, in float32.

        Raises `OutOfMemory`; `working_bytes` as for `patched`.
        """
        if self._device.charges_blocks:
            self._device.begin_block(working_bytes + patching_bytes(self._weights[key]))
        changed = values.to(torch.float32, copy=True)
        for entries in self.layers_of(key):
            changed = calculate_weight(entries, changed, key, self._host_weights.values)
        return changed


def patching_bytes(weight: Weight) -> int:
    """Return the bytes of the source, of three float32 tensors for the difference, and of the result."""
    values_bytes = 0 if weight.packing is None else weight.num_values * FLOAT32_BYTES
    return weight.num_values * NUM_FLOAT32_TO_PATCH * FLOAT32_BYTES + 2 * weight.in_module.nbytes + values_bytes
