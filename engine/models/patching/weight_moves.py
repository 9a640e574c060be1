"""Calls by which custom nodes move weights themselves, under ComfyUI's names.

Model memory decides what is on the device. These calls load a network with its patches, make its other changes, and
undo both; bytes and devices that they are given are advice that is not needed.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from darkroom.engine.models.patching.option_patches import models_of_patches, move_patches
from darkroom.engine.models.patching.patcher_registries import CALL_ON_DETACH
from darkroom.engine.models.weight_handle import Network


class WeightMoves:
    """Mixin of `ModulePatcher`, whose other members it uses."""

    model_options: dict[str, Any]

    def set_up_moves(self) -> None:
        self._patched: ExitStack | None = None  # undoes `patch_model`

    @property
    def _self(self) -> Any:
        """The `ModulePatcher` that this is a part of."""
        return self

    def patch_model(
        self,
        device_to: object = None,
        lowvram_model_memory: int = 0,
        load_weights: bool = True,
        force_patch_weights: bool = False,
    ) -> Network:
        """Load the network with its patches and make the other changes until `unpatch_model`; return it."""
        if load_weights:
            self.load(device_to)
        if self._patched is None:
            self._patched = ExitStack()
            self._patched.enter_context(self._self.changes_made())
        return self._self.model

    def unpatch_model(self, device_to: object = None, unpatch_weights: bool = True) -> None:
        """Undo `patch_model`."""
        patched, self._patched = self._patched, None
        if patched is not None:
            patched.close()
        if unpatch_weights and self._self.loaded_size():
            with self._self.weights.in_use():
                pass

    def load(
        self,
        device_to: object = None,
        lowvram_model_memory: int = 0,
        force_patch_weights: bool = False,
        full_load: bool = False,
    ) -> None:
        """Load the network with its patches."""
        with self._self.in_use():
            pass

    def partially_load(self, device_to: object, extra_memory: int = 0, force_patch_weights: bool = False) -> int:
        """Load the network with its patches; return the bytes that came to the device."""
        before: int = self._self.loaded_size()
        self.patch_model(device_to)
        after: int = self._self.loaded_size()
        return after - before

    def partially_unload(self, device_to: object, memory_to_free: int = 0) -> int:
        """Return 0: model memory evicts weights when others need the room."""
        return 0

    def detach(self, unpatch_all: bool = True) -> Network:
        """Undo `patch_model` and return the network."""
        if unpatch_all:
            self.unpatch_model()
        for callback in self._self.get_all_callbacks(CALL_ON_DETACH):
            callback(self, unpatch_all)
        return self._self.model

    def is_dynamic(self) -> bool:
        """Return False: weights are not moved in the middle of a step by ComfyUI's allocator."""
        return False

    def get_free_memory(self, device: object = None) -> float:
        """Return the bytes that are free for the network's work on its device."""
        free: float = self._self.free_bytes()
        return free

    def loaded_ram_size(self) -> int:
        """Return 0: model memory counts what lies in RAM."""
        return 0

    def partially_unload_ram(self, ram_to_unload: int) -> int:
        """Return 0: model memory evicts weights when others need the room."""
        return 0

    @property
    def pinned(self) -> set[str]:
        """The names of weights that a pack has pinned: none, since model memory pins them."""
        return set()

    def pinned_memory_size(self) -> int:
        """Return 0: model memory counts its pinned memory."""
        return 0

    def pin_weight_to_device(self, key: str) -> None:
        """Do nothing: model memory pins weights."""

    def unpin_weight(self, key: str) -> None:
        """Do nothing: model memory pins weights."""

    def unpin_all_weights(self) -> None:
        """Do nothing: model memory pins weights."""

    def model_patches_call_function(
        self, function_name: str = "cleanup", arguments: dict[str, Any] | None = None
    ) -> None:
        """Call a method of every patch among the options that has it."""
        options = self.model_options["transformer_options"]
        patches = [patch for found in options.get("patches", {}).values() for patch in found]
        patches += [patch for found in options.get("patches_replace", {}).values() for patch in found.values()]
        for patch in patches:
            if hasattr(patch, function_name):
                getattr(patch, function_name)(**(arguments or {}))

    def lowvram_patch_counter(self) -> int:
        """Return 0, the number of weights that are patched in each call for lack of memory, as ComfyUI counts them."""
        return 0

    def model_patches_to(self, device: torch.device | torch.dtype | str) -> None:
        """Move the functions among the options that have tensors of their own."""
        move_patches(self.model_options, device)

    def model_patches_models(self) -> list[Any]:
        """Return the models that functions among the options need on the device."""
        return models_of_patches(self.model_options)
