"""Patches on weights: applied in float32, undone exactly by putting the kept original back.

A patch is `(strength, value, strength of the weight, offset, function)` with a value of ComfyUI's forms:
`("diff", (tensor,))` or `(tensor,)` is added, `("set", (tensor,))` replaces, and a list `[(weight, conversion), patch,
...]` is another model's weight with its own patches, as merging gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

WeightPatch = tuple[float, Any, float, Any, Any]


class PatchedWeights:
    """The patches that are in a module's weights now, and the originals they replaced."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._originals: dict[str, torch.Tensor] = {}
        self._patches_id: object = None

    def apply(self, patches: Mapping[str, Sequence[WeightPatch]], patches_id: object) -> None:
        """Make the weights carry exactly these patches. The same id as before means that they already do."""
        if not patches:
            self.undo()
            return
        if patches_id == self._patches_id and self._originals:
            return
        self.undo()
        for key, entries in patches.items():
            parameter = self._module.get_parameter(key)
            self._originals[key] = parameter.data
            patched = calculate_weight(entries, parameter.data.to(torch.float32, copy=True), key)
            parameter.data = patched.to(parameter.dtype)
        self._patches_id = patches_id

    def undo(self) -> None:
        """Put the original weights back, bit for bit."""
        for key, original in self._originals.items():
            parameter = self._module.get_parameter(key)
            parameter.data = original.to(parameter.device)
        self._originals.clear()
        self._patches_id = None

    def original(self, key: str) -> torch.Tensor:
        """The weight (or buffer) without patches. Raises KeyError for a name the module does not have."""
        kept = self._originals.get(key)
        return self._module.state_dict()[key] if kept is None else kept

    @property
    def backup_bytes(self) -> int:
        return sum(item.nbytes for item in self._originals.values())


def calculate_weight(patches: Sequence[WeightPatch], weight: torch.Tensor, key: str) -> torch.Tensor:
    """`weight` (float32, changed in place where possible) with the patches, in order. Raises ValueError."""
    for strength, value, strength_model, offset, function in patches:
        place = weight if offset is None else weight.narrow(*offset)
        if strength_model != 1.0:
            place *= strength_model
        if isinstance(value, list):
            other = value[0][1](value[0][0].to(place, copy=True))
            place += _shaped(strength * calculate_weight(value[1:], other, key), place, key, function)
            continue
        kind, tensors = ("diff", value) if len(value) == 1 else value
        if kind == "diff":
            if strength != 0.0:
                place += _shaped(strength * tensors[0].to(place), place, key, function)
        elif kind == "set":
            place.copy_(tensors[0])
        else:
            raise ValueError(f"{key}: there is no weight patch of kind {kind!r}")
    return weight


def _shaped(difference: torch.Tensor, place: torch.Tensor, key: str, function: Any) -> torch.Tensor:
    if difference.shape != place.shape:
        raise ValueError(f"{key}: a patch of shape {list(difference.shape)} on a weight of shape {list(place.shape)}")
    changed: torch.Tensor = difference if function is None else function(difference)
    return changed
