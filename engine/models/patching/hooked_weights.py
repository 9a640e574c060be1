"""Patches of weights by hooks: registered before use, and applied as the hooks' strengths change."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import OptionDict, Options
from darkroom.engine.diffusion.wrappers import merge_options
from darkroom.engine.models.patching.hooks import EnumHookMode, EnumHookType, HookGroup, WeightHook

CALL_ON_APPLY_HOOKS = "on_apply_hooks"
CALL_ON_REGISTER_ALL_HOOK_PATCHES = "on_register_all_hook_patches"

HookPatches = dict[Any, dict[str, list[Any]]]  # hook_ref -> weight name -> patches


class HookedWeights:
    """Mixin of `ModulePatcher` that patches weights by hooks; it requires the rest of `ModulePatcher`."""

    weights: Any
    patches_uuid: object
    is_clip = False

    def set_up_hooks(self) -> None:
        self.hook_patches: HookPatches = {}
        self.hook_patches_backup: HookPatches | None = None
        self.forced_hooks: HookGroup | None = None  # of a text encoder: hooks it always carries
        self.hook_mode = EnumHookMode.MaxSpeed
        self.current_hooks: HookGroup | None = None  # those whose patches the weights have now

    def get_all_callbacks(self, call_type: str) -> list[Callable[..., object]]:
        return []

    def copy_hooks_to(self, other: HookedWeights) -> None:
        other.hook_patches = _copied(self.hook_patches)
        other.hook_patches_backup = None if self.hook_patches_backup is None else _copied(self.hook_patches_backup)
        other.forced_hooks = None if self.forced_hooks is None else self.forced_hooks.clone()
        other.hook_mode = self.hook_mode

    # --- registered patches ----------------------------------------------------------------------------------------

    def register_all_hook_patches(
        self,
        hooks: HookGroup,
        target_dict: Mapping[str, object],
        model_options: object = None,
        registered: HookGroup | None = None,
    ) -> HookGroup:
        """Register the patches of weight hooks until the next call or `restore_hook_patches`."""
        self.restore_hook_patches()
        registered = HookGroup() if registered is None else registered
        new = []
        for hook in hooks.get_type(EnumHookType.Weight):
            if hook.hook_ref in self.hook_patches:
                registered.add(hook)
            else:
                new.append(hook)
        if new:
            self.hook_patches_backup = _copied(self.hook_patches)
        for hook in new:
            hook.add_hook_patches(self, model_options, target_dict, registered)
        for callback in self.get_all_callbacks(CALL_ON_REGISTER_ALL_HOOK_PATCHES):
            callback(self, hooks, target_dict, model_options, registered)
        return registered

    def add_hook_patches(
        self, hook: WeightHook, patches: Mapping[Any, Any], strength_patch: float = 1.0, strength_model: float = 1.0
    ) -> list[Any]:
        """Add patches that take effect when that hook is applied; otherwise as `ModulePatcher.add_patches`."""
        known = self.weights.module.state_dict().keys()
        entries = self.hook_patches.setdefault(hook.hook_ref, {})
        taken = []
        for place, patch in patches.items():
            key, offset, function = (place, None, None) if isinstance(place, str) else (*place, None, None)[:3]
            if key in known:
                taken.append(place)
                entries.setdefault(key, []).append((strength_patch, patch, strength_model, offset, function))
        self.patches_uuid = uuid.uuid4()
        return taken

    def restore_hook_patches(self) -> None:
        """Discard the last registration."""
        if self.hook_patches_backup is not None:
            self.hook_patches = self.hook_patches_backup
            self.hook_patches_backup = None

    def set_hook_mode(self, hook_mode: EnumHookMode) -> None:
        self.hook_mode = hook_mode

    # --- while in use ------------------------------------------------------------------------------------------------

    def prepare_hook_patches_current_keyframe(
        self, t: Any, hook_group: HookGroup, model_options: Mapping[str, Any]
    ) -> None:
        """Update the strengths of hooks to the noise level of this step."""
        options = model_options.get("transformer_options", {})
        for hook in hook_group.hooks:
            hook.hook_keyframe.prepare_current_keyframe(curr_t=on_host(t)[0], transformer_options=options)

    def apply_hooks(
        self, hooks: HookGroup | None, transformer_options: Options | None = None, force_apply: bool = False
    ) -> OptionDict:
        """Patch the weights as `hooks` require (None: no patches) and return the options the hooks add."""
        self.patch_hooks(hooks)
        for callback in self.get_all_callbacks(CALL_ON_APPLY_HOOKS):
            callback(self, hooks)
        if hooks is None or self.is_clip:
            return {}
        options = merge_options(transformer_options or {}, {})
        for hook in hooks.get_type(EnumHookType.TransformerOptions):
            options = hook.on_apply_hooks(self, options)
        return options

    def unpatch_hooks(self, whitelist_keys_set: object = None) -> None:
        """Take the patches of hooks off the weights."""
        self.patch_hooks(None)

    def clear_cached_hook_weights(self) -> None:
        """Do nothing: model memory drops patched weights when others need the room."""

    def clean_hooks(self) -> None:
        self.unpatch_hooks()

    @property
    def hook_backup(self) -> dict[str, torch.Tensor]:
        """Weights that hooks' patches have replaced: none, since model memory keeps both."""
        return {}

    @property
    def cached_hook_patches(self) -> dict[HookGroup, dict[str, torch.Tensor]]:
        """Weights by the hooks that patch them: none, since model memory keeps them."""
        return {}

    def patch_hooks(self, hooks: HookGroup | None) -> None:
        self.current_hooks = hooks
        patches = self.get_combined_hook_patches(hooks)
        if hooks is None or not patches:
            self.weights.patch_hooks({}, None)
            return
        name = (self.patches_uuid, *((hook.hook_ref, hook.strength) for hook in hooks.get_type(EnumHookType.Weight)))
        fits = self.weights.free_bytes() > self.weights.size_bytes
        self.weights.patch_hooks(patches, name, keep=fits and self.hook_mode is EnumHookMode.MaxSpeed)

    def get_combined_hook_patches(self, hooks: HookGroup | None) -> dict[str, list[object]]:
        """Return a map from weight name to the patches of all hooks, at the strengths of their current keyframes."""
        combined: dict[str, list[Any]] = {}
        for hook in [] if hooks is None else hooks.hooks:
            for key, entries in self.hook_patches.get(hook.hook_ref, {}).items():
                if not math.isclose(hook.strength, 1.0):
                    entries = [(entry[0] * hook.strength, *entry[1:]) for entry in entries]
                combined.setdefault(key, []).extend(entries)
        return combined


def _copied(patches: HookPatches) -> HookPatches:
    return {ref: {key: list(entries) for key, entries in by_key.items()} for ref, by_key in patches.items()}
