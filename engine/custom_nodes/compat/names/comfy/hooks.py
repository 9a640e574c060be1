"""`comfy.hooks`: hooks and keyframes of conditioning."""

from __future__ import annotations

from engine.values.hooks import (
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
)

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
]

WrapperHook = TransformerOptionsHook  # its older name
