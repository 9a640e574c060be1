"""`comfy.hooks`: hooks and keyframes of conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.adapters.lora_names import LoraTarget
from darkroom.engine.models.patching.hooks import (
    EnumHookMode,
    EnumHookScope,
    EnumHookType,
    EnumWeightTarget,
    Hook,
    HookGroup,
    HookKeyframe,
    HookKeyframeGroup,
    TransformerOptionsHook,
    WeightHook,
    create_hook_lora,
    create_hook_model_as_lora,
    create_target_dict,
)
from darkroom.engine.models.patching.lora_keys import denoiser_lora_keys, text_lora_keys
from darkroom.engine.nodes.library.conditioning.conditioning import with_mask, with_options
from darkroom.engine.nodes.library.conditioning.conditioning_properties import with_hooks
from darkroom.engine.nodes.sockets import Conditioning

__all__ = [
    "EnumHookMode",
    "EnumHookScope",
    "EnumHookType",
    "EnumWeightTarget",
    "Hook",
    "HookGroup",
    "HookKeyframe",
    "HookKeyframeGroup",
    "TransformerOptionsHook",
    "WeightHook",
    "WrapperHook",
    "create_hook_lora",
    "create_hook_model_as_lora",
    "create_target_dict",
]

WrapperHook = TransformerOptionsHook  # its older name


def load_hook_lora_for_models(
    model: Any, clip: Any, lora: dict[str, torch.Tensor], strength_model: float, strength_clip: float
) -> tuple[Any, Any, HookGroup]:
    """Return clones with the patches of a LoRA that take effect when the hook does, and the hook; None stays None."""
    hook = WeightHook()
    key_map: dict[str, LoraTarget] = {}
    if model is not None:
        key_map |= denoiser_lora_keys(model.model)
    if clip is not None:
        key_map |= text_lora_keys(clip.cond_stage_model)
    patches = lora_patches(lora, key_map)
    hooked, hooked_clip = (None if value is None else value.clone() for value in (model, clip))
    if hooked is not None:
        hooked.add_hook_patches(hook=hook, patches=patches, strength_patch=strength_model)
    if hooked_clip is not None:
        hooked_clip.patcher.add_hook_patches(hook=hook, patches=patches, strength_patch=strength_clip)
    return hooked, hooked_clip, HookGroup([hook])


def set_hooks_for_conditioning(
    cond: Conditioning, hooks: HookGroup | None, append_hooks: bool = True, cache: object = None
) -> Conditioning:
    return _hooked([cond], hooks, append_hooks)[0]


def set_timesteps_for_conditioning(cond: Conditioning, timestep_range: tuple[float, float] | None) -> Conditioning:
    if timestep_range is None:
        return cond
    return with_options(cond, start_percent=timestep_range[0], end_percent=timestep_range[1])


def set_mask_for_conditioning(
    cond: Conditioning, mask: torch.Tensor | None, set_cond_area: str, strength: float
) -> Conditioning:
    return cond if mask is None else with_mask(cond, mask, strength, set_cond_area)


def combine_conditioning(conds: Sequence[Conditioning]) -> Conditioning:
    return [entry for cond in conds for entry in cond]


def combine_with_new_conds(conds: Sequence[Conditioning], new_conds: Sequence[Conditioning]) -> list[Conditioning]:
    return [combine_conditioning(pair) for pair in zip(conds, new_conds, strict=False)]


def set_conds_props(
    conds: Sequence[Conditioning],
    strength: float,
    set_cond_area: str,
    mask: torch.Tensor | None = None,
    hooks: HookGroup | None = None,
    timesteps_range: tuple[float, float] | None = None,
    append_hooks: bool = True,
) -> list[Conditioning]:
    """Return conditionings with mask, hooks and step range set, each only when given."""
    hooked = _hooked(conds, hooks, append_hooks)
    masked = (set_mask_for_conditioning(cond, mask, set_cond_area, strength) for cond in hooked)
    return [set_timesteps_for_conditioning(cond, timesteps_range) for cond in masked]


def set_conds_props_and_combine(
    conds: Sequence[Conditioning],
    new_conds: Sequence[Conditioning],
    strength: float = 1.0,
    set_cond_area: str = "default",
    mask: torch.Tensor | None = None,
    hooks: HookGroup | None = None,
    timesteps_range: tuple[float, float] | None = None,
    append_hooks: bool = True,
) -> list[Conditioning]:
    """Return conditionings followed by the entries of new ones, which get mask, hooks and step range."""
    changed = set_conds_props(new_conds, strength, set_cond_area, mask, hooks, timesteps_range, append_hooks)
    return combine_with_new_conds(conds, changed)


def set_default_conds_and_combine(
    conds: Sequence[Conditioning],
    new_conds: Sequence[Conditioning],
    hooks: HookGroup | None = None,
    timesteps_range: tuple[float, float] | None = None,
    append_hooks: bool = True,
) -> list[Conditioning]:
    """Return conditionings followed by new ones that are used where no other entry has a say."""
    defaults = (with_options(cond, default=True) for cond in _hooked(new_conds, hooks, append_hooks))
    return combine_with_new_conds(conds, [set_timesteps_for_conditioning(cond, timesteps_range) for cond in defaults])


def _hooked(conds: Sequence[Conditioning], hooks: HookGroup | None, append_hooks: bool) -> Sequence[Conditioning]:
    if append_hooks or hooks is None:
        return with_hooks(tuple(conds), hooks)
    return [with_options(cond, hooks=hooks) for cond in conds]
