"""Values of one model's weights, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from darkroom.engine.memory.offload.device_weights import DeviceWeights
from darkroom.engine.memory.offload.host_weights import HostWeights
from darkroom.engine.memory.offload.packing import unpacked
from darkroom.engine.memory.offload.patching import WantedPatches
from darkroom.engine.memory.offload.weight import Weight


class WeightValues:
    """Weights of one model by name, with their patches and without. Raises KeyError for an unknown name."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        load_device: str,
        homes: HostWeights,
        copies: DeviceWeights,
        patches: WantedPatches,
    ) -> None:
        self._weights = weights
        self._load_device = load_device
        self._host_weights = homes
        self._device_weights = copies
        self._patches = patches

    def original(self, key: str) -> torch.Tensor:
        """Return the weight (or buffer) without patches, in RAM if the model can be offloaded.

        That of a packed one are its values, float32.
        """
        return self._host_weights.values(key)

    def current(self, key: str) -> torch.Tensor:
        """Return the weight with the current patches and hooks; of a packed one its values, float32."""
        weight = self._weights[key]
        if weight.packing is not None and weight.is_patched_on_the_way:
            return self._patches.patched_values(self._host_weights.values(weight.key), weight.key)
        tensor = weight.loaded
        if tensor is None:
            tensor = self._host_weights.original(key).to(self._load_device)
            for entries in self._patches.layers_of(key):
                tensor = self._device_weights.patched(entries, tensor, key)
        return tensor if weight.packing is None else unpacked(weight.packing, tensor, {})
