"""The patched weights of a value, asked for one by one, in ComfyUI's form (`ModelPatcher.patch_weight_to_device`).

ComfyUI puts patched weights into the network and keeps the others in `backup`; here model memory patches a copy while
the value is in use, so that no weight is ever backed up.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.memory import weight_patches

Tensors = dict[str, torch.Tensor]
Wrapper = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class WrappedWeight:
    """A patch that is a function of the weight, for whatever the patches before it have made of it."""

    function: Wrapper

    def calculate_weight(self, weight: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        return self.function(weight)


class PatchedWeights:
    """Mixin of `ModulePatcher`, whose other members it uses."""

    force_cast_weights = False
    weight_inplace_update = False

    def set_up_patched_weights(self) -> None:
        self.backup: dict[str, torch.Tensor] = {}
        self.weight_wrapper_patches: dict[str, list[Wrapper]] = {}

    def copy_wrappers_to(self, other: PatchedWeights) -> None:
        other.weight_wrapper_patches = {name: [*found] for name, found in self.weight_wrapper_patches.items()}

    def add_weight_wrapper(self, name: str, function: Wrapper) -> None:
        """Have a function change a weight, after all patches of it so far, while this clone is in use."""
        owner: Any = self
        self.weight_wrapper_patches.setdefault(name, []).append(function)
        owner.patches.setdefault(name, []).append((1.0, WrappedWeight(function), 1.0, None, None))
        owner.patches_uuid = uuid.uuid4()

    @property
    def clone_base_uuid(self) -> object:
        """The same for all clones of one network."""
        owner: Any = self
        return id(owner.weights)

    @property
    def is_multigpu_base_clone(self) -> bool:
        """False: a network is on one device."""
        return False

    def model_state_dict_for_saving(self, model: torch.nn.Module | None = None, prefix: str = "") -> Tensors:
        """Return weights with this clone's patches: the network's, or those of a part whose names lie behind a prefix.

        They have the part's own names.
        """
        owner: Any = self
        part = owner.model if model is None else model
        return {name: self.patch_weight_to_device(prefix + name) for name in part.state_dict()}

    def state_dict_for_saving(
        self,
        clip_state_dict: Tensors | None = None,
        vae_state_dict: Tensors | None = None,
        clip_vision_state_dict: Tensors | None = None,
    ) -> Tensors:
        """Return the patched weights, with those of other networks, under the names that a checkpoint has for them."""
        owner: Any = self
        network = owner.model
        weights = self.model_state_dict_for_saving(network.diffusion_model, "diffusion_model.")
        saved: Tensors = network.state_dict_for_saving(weights, clip_state_dict, vae_state_dict, clip_vision_state_dict)
        return saved

    def calculate_weight(
        self, patches: Sequence[Any], weight: torch.Tensor, key: str, intermediate_dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Return a weight, which may be changed in place, with the patches applied in order."""
        return weight_patches.calculate_weight(patches, weight, key)

    def patch_weight_to_device(
        self,
        key: str,
        device_to: Any = None,
        inplace_update: bool = False,
        return_weight: bool = False,
        force_cast: bool = False,
    ) -> torch.Tensor:
        """Return a weight with this clone's patches, on the device that is given or its own.

        The network's own stays as it is: it is patched while the clone is in use.
        """
        owner: Any = self
        weight: torch.Tensor = owner.weights.original_weight(key)
        if device_to is not None:
            weight = weight.to(device_to)
        entries = owner.patches.get(key, [])
        return weight_patches.patched(entries, weight, key) if entries else weight
