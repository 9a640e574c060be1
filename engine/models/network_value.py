"""Members shared by the values that hold a network without being one: CLIP, VAE, CLIP_VISION and their like."""

from __future__ import annotations

import torch

from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.weight_handle import Network, WeightHandle


class NetworkValue:
    """A value whose `patcher` holds its weights, their patches and their device."""

    patcher_class: type[ModulePatcher] = ModulePatcher

    def __init__(self, weights: WeightHandle) -> None:
        self.patcher = self.patcher_class(weights)

    @property
    def load_device(self) -> torch.device:
        return self.patcher.load_device

    def get_ram_usage(self) -> int:
        """Return the bytes of the weights that are in RAM now."""
        return self.patcher.get_ram_usage()

    def is_dynamic(self) -> bool:
        """Return False: see `WeightMoves.is_dynamic`."""
        return self.patcher.is_dynamic()

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return self.patcher.size

    def model_size(self) -> int:
        return self.patcher.model_size()

    def get_sd(self) -> dict[str, torch.Tensor]:
        """Return all weights by name."""
        return self.patcher.model_state_dict()


class NetworkAsModel(NetworkValue):
    """A value of a single network, which code in ComfyUI's form takes as its `model`."""

    @property
    def model(self) -> Network:
        """The network itself."""
        return self.patcher.model
