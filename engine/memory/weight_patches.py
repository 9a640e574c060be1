"""Patches on weights: applied in float32, undone exactly by putting the kept original back.

A patch is `(strength, value, strength of the weight, offset, function)` with a value of ComfyUI's forms: `("diff",
(tensor,))` or `(tensor,)` is added, `("set", (tensor,))` replaces, `("model_as_lora", (tensor,))` adds what another
model's weight is above the original, an object with `calculate_weight` does it itself (LoRA and its relatives), and a
list `[(weight, conversion), patch, ...]` is another model's weight with its own patches, as merging gives it.

Hooks are a second layer of patches on top, which changes between calls of a network while it is in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

WeightPatch = tuple[float, Any, float, Any, Any]
Patches = Mapping[str, Sequence[WeightPatch]]
Originals = Callable[[str], torch.Tensor]

log = logging.getLogger(__name__)


class PatchedWeights:
    """The patches that are in a module's weights now, and the originals they replaced.

    Originals are kept on `keep_on`. A module may say in `patched_dtype` to which type its patched weights are rounded.
    """

    def __init__(self, module: torch.nn.Module, keep_on: str | None = None) -> None:
        self._module = module
        self._keep_on = keep_on
        self._originals: dict[str, torch.Tensor] = {}
        self._applied: dict[str, tuple[WeightPatch, ...]] = {}
        self._patches_id: object = None
        self._below_hooks: dict[str, torch.Tensor] = {}
        self._hooks_id: object = None
        self._hooked: dict[object, dict[str, torch.Tensor]] = {}

    def apply(self, patches: Patches, patches_id: object) -> None:
        """Make the weights carry exactly these patches; only weights whose patches changed are touched.

        The same id as before means that they already do.
        """
        self.undo_hooks()
        if patches_id == self._patches_id and (self._originals or not patches):
            return
        for key in [key for key in self._applied if not _same(self._applied[key], patches.get(key, ()))]:
            self._restore(key)
        for key, entries in patches.items():
            if key in self._applied or not entries:
                continue
            weight = self._weight(key)
            original = weight.data
            weight.data = self._patched(entries, original, key)
            self._originals[key] = original if self._keep_on is None else original.to(self._keep_on)
            self._applied[key] = tuple(entries)
        self._patches_id = patches_id

    def apply_hooks(self, patches: Patches, hooks_id: object, *, keep: bool = False) -> None:
        """Make the weights carry these patches on top of the others. With `keep` they are remembered until the end."""
        if hooks_id == self._hooks_id:
            return
        self._take_hooks_off()
        ready = self._hooked.get(hooks_id)
        for key, entries in patches.items():
            weight = self._weight(key)
            self._below_hooks[key] = weight.data
            weight.data = self._patched(entries, weight.data, key) if ready is None else ready[key]
        self._hooks_id = hooks_id
        if keep and ready is None:
            self._hooked[hooks_id] = {key: self._weight(key).data for key in patches}

    def undo_hooks(self) -> None:
        """Take the second layer off and forget what was remembered of it."""
        self._take_hooks_off()
        self._hooked.clear()

    def undo(self, device: str | None = None) -> None:
        """Put the original weights back, bit for bit, on the device of the patched ones or the one given."""
        self.undo_hooks()
        for key in list(self._originals):
            self._restore(key, device)
        self._patches_id = None

    def original(self, key: str) -> torch.Tensor:
        """The weight (or buffer) without patches. Raises KeyError for a name the module does not have."""
        kept = self._originals.get(key, self._below_hooks.get(key))
        return self._weight(key).data if kept is None else kept

    @property
    def backup_bytes(self) -> int:
        return sum(item.nbytes for item in self._originals.values())

    def _take_hooks_off(self) -> None:
        for key, below in self._below_hooks.items():
            self._weight(key).data = below
        self._below_hooks.clear()
        self._hooks_id = None

    def _restore(self, key: str, device: str | None = None) -> None:
        weight = self._weight(key)
        weight.data = self._originals.pop(key).to(weight.device if device is None else device)
        del self._applied[key]

    def _weight(self, key: str) -> torch.Tensor:
        owner, _, name = key.rpartition(".")
        try:
            weight = getattr(self._module.get_submodule(owner), name)
        except AttributeError as error:
            raise KeyError(key) from error
        if not isinstance(weight, torch.Tensor):
            raise KeyError(key)
        return weight

    def _patched(self, entries: Sequence[WeightPatch], weight: torch.Tensor, key: str) -> torch.Tensor:
        changed = calculate_weight(entries, weight.to(torch.float32, copy=True), key, self.original)
        rounded: torch.dtype | None = getattr(self._module, "patched_dtype", None)
        if rounded is not None:
            changed = changed.to(rounded)
        return changed.to(weight.dtype)


def _same(first: Sequence[WeightPatch], second: Sequence[WeightPatch]) -> bool:
    return len(first) == len(second) and all(
        a is b or (a[0] == b[0] and a[1] is b[1] and a[2:] == b[2:]) for a, b in zip(first, second, strict=True)
    )


def calculate_weight(
    patches: Sequence[WeightPatch], weight: torch.Tensor, key: str, originals: Originals | None = None
) -> torch.Tensor:
    """`weight` (float32, changed in place where possible) with the patches, in order.

    A patch that does not fit is warned about and left out, as in ComfyUI: merging an inpainting network with another
    one relies on it. Raises ValueError for a kind of patch there is not.
    """
    for strength, value, strength_model, offset, given_function in patches:
        function = given_function or _unchanged
        place = weight if offset is None else weight.narrow(*offset)
        if strength_model != 1.0:
            place *= strength_model
        if hasattr(value, "calculate_weight"):
            changed = value.calculate_weight(
                place, key, strength, strength_model, offset, function, torch.float32, originals
            )
        elif isinstance(value, list):
            other = calculate_weight(value[1:], value[0][1](value[0][0].to(place, copy=True)), key, originals)
            changed = _added(place, strength, other, function, key)
        else:
            changed = _plain(place, strength, value, function, key, originals)
        if offset is None:
            weight = changed
    return weight


def _plain(
    place: torch.Tensor,
    strength: float,
    value: Sequence[Any],
    function: Callable[[torch.Tensor], torch.Tensor],
    key: str,
    originals: Originals | None,
) -> torch.Tensor:
    kind, tensors = ("diff", value) if len(value) == 1 else value
    if kind == "diff":
        if len(tensors) > 1 and tensors[1]["pad_weight"] and tensors[0].shape != place.shape:
            place = _padded(place, tensors[0].shape)
        return _added(place, strength, tensors[0], function, key)
    if kind == "set":
        return place.copy_(tensors[0])
    if kind == "model_as_lora" and originals is not None:
        difference = tensors[0].to(place) - originals(key).to(place)
        return place.add_(function(strength * difference))
    raise ValueError(f"{key}: there is no weight patch of kind {kind!r}")


def _added(
    place: torch.Tensor,
    strength: float,
    difference: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    key: str,
) -> torch.Tensor:
    if strength == 0.0:
        return place
    if difference.shape != place.shape:
        log.warning(
            "%s: a patch of shape %s on a weight of shape %s is left out", key, [*difference.shape], [*place.shape]
        )
        return place
    return place.add_(function(strength * difference.to(place)))


def _padded(weight: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    larger = weight.new_zeros(shape)
    larger[tuple(slice(0, size) for size in weight.shape)] = weight
    return larger


def _unchanged(difference: torch.Tensor) -> torch.Tensor:
    return difference
