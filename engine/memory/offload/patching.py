"""The patches that a model is to carry, in two layers: those of the use in hand, and those of hooks on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.memory.device import Device, Dtype, Tensor
from engine.memory.offload.blocks import Weight
from engine.memory.offload.host_weights import HostWeights
from engine.memory.weight_patches import Patches, WeightPatch, patched

FLOAT32_BYTES = 4
NUM_FLOAT32_TO_PATCH = 3


class WantedPatches:
    """What is wanted, and how a weight is patched so; `device_weights.py` puts that into what the device holds."""

    def __init__(self, weights: Mapping[str, Weight], device: Device, homes: HostWeights) -> None:
        self._weights = weights
        self._device = device
        self._host_weights = homes
        self.of_use: dict[str, tuple[WeightPatch, ...]] = {}
        self.use_id: object = None
        self.are_applied = True  # what is on the device carries those of the use
        self.of_hooks: dict[str, Sequence[WeightPatch]] = {}
        self.hooks_id: object = None
        self.working_now_bytes = 0  # charged where somebody counts, while a layer is computing

    def want(self, patches: Patches, patches_id: object) -> None:
        """The same id as before means the same patches. Raises KeyError for a weight there is not."""
        if patches_id is not None and patches_id == self.use_id:
            return
        wanted = {key: tuple(entries) for key, entries in patches.items() if entries}
        self._check(wanted)
        self.of_use, self.use_id, self.are_applied = wanted, patches_id, False

    def want_hooks(self, patches: Patches, hooks_id: object) -> None:
        """Raises KeyError for a weight there is not."""
        wanted = {key: entries for key, entries in patches.items() if entries}
        self._check(wanted)
        self.of_hooks, self.hooks_id = wanted, hooks_id

    def _check(self, wanted: Mapping[str, object]) -> None:
        unknown = wanted.keys() - self._weights.keys()
        if unknown:
            raise KeyError(min(unknown))

    def layers_of(self, key: str) -> list[Sequence[WeightPatch]]:
        """What is to be put on a weight, in this order."""
        return [layer for layer in (self.of_use.get(key), self.of_hooks.get(key)) if layer]

    @property
    def room_bytes(self) -> int:
        """What it takes on the device to patch a weight, also while a layer computes whose weights are away."""
        keys = (*self.of_use, *self.of_hooks)
        return max((patching_bytes(self._weights[key].shown) for key in keys), default=0)

    def patched(self, entries: Sequence[WeightPatch], weight: Tensor, key: str, rounded: Dtype | None) -> Tensor:
        """A new tensor where `weight` lies, as `rounded` before. Raises `OutOfMemory`."""
        if self._device.charges_blocks:
            self._device.begin_block(self.working_now_bytes + patching_bytes(weight) - weight.nbytes)
        return patched(entries, weight, key, self._host_weights.original, rounded)


def patching_bytes(weight: Tensor) -> int:
    """The weight as it is brought, in float32, two tensors more for the difference, and what comes of it."""
    return weight.numel() * (NUM_FLOAT32_TO_PATCH * FLOAT32_BYTES + 2 * weight.dtype.itemsize)
