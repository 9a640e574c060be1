"""Nodes that create hooks, schedule their strength and attach them to text encoders."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import torch

from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.borrowed_weight import BorrowedWeight
from darkroom.engine.models.patching.hooks import (
    EnumWeightTarget,
    HookGroup,
    HookKeyframe,
    HookKeyframeGroup,
    create_hook_lora,
    create_hook_model_as_lora,
    create_target_dict,
)
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CLIP, HOOK_KEYFRAMES, HOOKS
from darkroom.engine.nodes.widgets import Choice, Flag, Float, Int, ModelFile, Widget

CREATE, SCHEDULING, COMBINE = (f"advanced/hooks/{name}" for name in ("create", "scheduling", "combine"))
HOOKS_MODULE = "comfy_extras.nodes_hooks"
INTERPOLATIONS = ("linear", "ease_in", "ease_out", "ease_in_out")

Strength = Annotated[float, Float(min=-20.0, max=20.0, step=0.01)]
Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]
OptionalHooks = Annotated[HOOKS | None, Optional()]
OptionalKeyframes = Annotated[HOOK_KEYFRAMES | None, Optional()]
HookKf = Annotated[HOOK_KEYFRAMES, Out("HOOK_KF")]

log = logging.getLogger(__name__)


# --- making ----------------------------------------------------------------------------------------------------------


def _lora_hooks(
    context: NodeContext, lora_name: str, strength_model: float, strength_clip: float, prev_hooks: HookGroup | None
) -> HookGroup:
    before = HookGroup() if prev_hooks is None else prev_hooks
    if strength_model == 0 and strength_clip == 0:
        return before
    lora = context.models.files.tensors("loras", lora_name)
    return before.clone_and_combine(create_hook_lora(lora, strength_model, strength_clip))


@node("CreateHookLora", display_name="Create Hook LoRA", category=CREATE, python_module=HOOKS_MODULE, experimental=True)
def create_hook_lora_node(
    context: NodeContext,
    *,
    lora_name: Annotated[str, ModelFile("loras")],
    strength_model: Strength = 1.0,
    strength_clip: Strength = 1.0,
    prev_hooks: OptionalHooks = None,
) -> HOOKS:
    return _lora_hooks(context, lora_name, strength_model, strength_clip, prev_hooks)


@node(
    "CreateHookLoraModelOnly",
    display_name="Create Hook LoRA (MO)",
    category=CREATE,
    python_module=HOOKS_MODULE,
    experimental=True,
)
def create_hook_lora_model_only(
    context: NodeContext,
    *,
    lora_name: Annotated[str, ModelFile("loras")],
    strength_model: Strength = 1.0,
    prev_hooks: OptionalHooks = None,
) -> HOOKS:
    return _lora_hooks(context, lora_name, strength_model, 0.0, prev_hooks)


def _model_hooks(
    context: NodeContext, ckpt_name: str, strength_model: float, strength_clip: float, prev_hooks: HookGroup | None
) -> HookGroup:
    model, clip, _ = context.models.checkpoint(ckpt_name)
    weights, clip_weights = _original_weights(model), _original_weights(clip.patcher)
    hooks = create_hook_model_as_lora(weights, clip_weights, strength_model, strength_clip)
    return (HookGroup() if prev_hooks is None else prev_hooks).clone_and_combine(hooks)


def _original_weights(model: Model) -> dict[str, BorrowedWeight]:
    """Return all weights without patches. The noise levels of a checkpoint do not count as weights."""
    names = (name for name in model.model.state_dict() if not name.startswith("model_sampling"))
    return {name: BorrowedWeight(model.weights, name) for name in names}


@node(
    "CreateHookModelAsLora",
    display_name="Create Hook Model as LoRA",
    category=CREATE,
    python_module=HOOKS_MODULE,
    experimental=True,
)
def create_hook_model_as_lora_node(
    context: NodeContext,
    *,
    ckpt_name: Annotated[str, ModelFile("checkpoints")],
    strength_model: Strength = 1.0,
    strength_clip: Strength = 1.0,
    prev_hooks: OptionalHooks = None,
) -> HOOKS:
    return _model_hooks(context, ckpt_name, strength_model, strength_clip, prev_hooks)


@node(
    "CreateHookModelAsLoraModelOnly",
    display_name="Create Hook Model as LoRA (MO)",
    category=CREATE,
    python_module=HOOKS_MODULE,
    experimental=True,
)
def create_hook_model_as_lora_model_only(
    context: NodeContext,
    *,
    ckpt_name: Annotated[str, ModelFile("checkpoints")],
    strength_model: Strength = 1.0,
    prev_hooks: OptionalHooks = None,
) -> HOOKS:
    return _model_hooks(context, ckpt_name, strength_model, 0.0, prev_hooks)


# --- scheduling ------------------------------------------------------------------------------------------------------


@node(
    "SetHookKeyframes",
    display_name="Set Hook Keyframes",
    category=SCHEDULING,
    python_module=HOOKS_MODULE,
    experimental=True,
)
def set_hook_keyframes(context: NodeContext, *, hooks: HOOKS, hook_kf: OptionalKeyframes = None) -> HOOKS:
    if hook_kf is None:
        return hooks
    scheduled: HookGroup = hooks.clone()
    scheduled.set_keyframes_on_hooks(hook_kf)
    return scheduled


@node(
    "CreateHookKeyframe",
    display_name="Create Hook Keyframe",
    category=SCHEDULING,
    python_module=HOOKS_MODULE,
    experimental=True,
)
def create_hook_keyframe(
    context: NodeContext,
    *,
    strength_mult: Strength = 1.0,
    start_percent: Percent = 0.0,
    prev_hook_kf: OptionalKeyframes = None,
) -> HookKf:
    keyframes = HookKeyframeGroup() if prev_hook_kf is None else prev_hook_kf.clone()
    keyframes.add(HookKeyframe(strength_mult, start_percent))
    return keyframes


def interpolated(start: float, end: float, length: int, method: str) -> list[float]:
    """Interpolate `length` values from `start` to `end`.

    By `method` the steps are even, or small at the start, at the end, or at both (a cosine).
    """
    way = torch.linspace(0, 1, length)
    if method == "linear":
        return [float(value) for value in torch.linspace(start, end, length)]
    if method == "ease_in":
        way = way**2
    elif method == "ease_out":
        way = 1 - (1 - way) ** 2
    else:
        way = (1 - torch.cos(way * math.pi)) / 2
    return [float(value) for value in (end - start) * way + start]


def _with_keyframes(
    before: HookKeyframeGroup | None,
    strengths: Sequence[float],
    start_percent: float,
    end_percent: float,
    print_keyframes: bool,
) -> HookKeyframeGroup:
    """Append evenly spaced keyframes to a group; the first one is guaranteed for at least one step."""
    keyframes = HookKeyframeGroup() if before is None else before.clone()
    percents = interpolated(start_percent, end_percent, len(strengths), "linear")
    for index, (percent, strength) in enumerate(zip(percents, strengths, strict=True)):
        keyframes.add(HookKeyframe(strength, percent, guarantee_steps=0 if index else 1))
        if print_keyframes:
            log.info("Hook Keyframe - start_percent:%s = %s", percent, strength)
    return keyframes


@node(
    "CreateHookKeyframesInterpolated",
    display_name="Create Hook Keyframes Interp.",
    category=SCHEDULING,
    python_module=HOOKS_MODULE,
    experimental=True,
    advanced=("print_keyframes",),
)
def create_hook_keyframes_interpolated(
    context: NodeContext,
    *,
    strength_start: Annotated[float, Float(min=0.0, max=10.0, step=0.001)] = 1.0,
    strength_end: Annotated[float, Float(min=0.0, max=10.0, step=0.001)] = 1.0,
    interpolation: Annotated[str, Choice(INTERPOLATIONS)],
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
    keyframes_count: Annotated[int, Int(min=2, max=100, step=1)] = 5,
    print_keyframes: Annotated[bool, Flag()] = False,
    prev_hook_kf: OptionalKeyframes = None,
) -> HookKf:
    strengths = interpolated(strength_start, strength_end, keyframes_count, interpolation)
    return _with_keyframes(prev_hook_kf, strengths, start_percent, end_percent, print_keyframes)


class Floats(Widget):
    """A list of numbers, declared like a widget although only a link can supply it."""

    def type_in(self, environment: object) -> str:
        return "FLOATS"


@node(
    "CreateHookKeyframesFromFloats",
    display_name="Create Hook Keyframes From Floats",
    category=SCHEDULING,
    python_module=HOOKS_MODULE,
    experimental=True,
    advanced=("print_keyframes",),
)
def create_hook_keyframes_from_floats(
    context: NodeContext,
    *,
    floats_strength: Annotated[Any, Floats(extra={"min": -1, "step": 0.001, "forceInput": True})] = -1,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
    print_keyframes: Annotated[bool, Flag()] = False,
    prev_hook_kf: OptionalKeyframes = None,
) -> HookKf:
    strengths = floats_strength if isinstance(floats_strength, Iterable) else [floats_strength]
    values = [float(strength) for strength in strengths]
    return _with_keyframes(prev_hook_kf, values, start_percent, end_percent, print_keyframes)


# --- combining and attaching -----------------------------------------------------------------------------------------


@node(
    "CombineHooks2", display_name="Combine Hooks [2]", category=COMBINE, python_module=HOOKS_MODULE, experimental=True
)
def combine_hooks_2(context: NodeContext, *, hooks_A: OptionalHooks = None, hooks_B: OptionalHooks = None) -> HOOKS:  # noqa: N803 - ComfyUI's spelling
    return HookGroup.combine_all_hooks((hooks_A, hooks_B))


@node(
    "CombineHooks4", display_name="Combine Hooks [4]", category=COMBINE, python_module=HOOKS_MODULE, experimental=True
)
def combine_hooks_4(
    context: NodeContext,
    *,
    hooks_A: OptionalHooks = None,  # noqa: N803 - ComfyUI's spelling, here and below
    hooks_B: OptionalHooks = None,  # noqa: N803
    hooks_C: OptionalHooks = None,  # noqa: N803
    hooks_D: OptionalHooks = None,  # noqa: N803
) -> HOOKS:
    return HookGroup.combine_all_hooks((hooks_A, hooks_B, hooks_C, hooks_D))


@node(
    "CombineHooks8", display_name="Combine Hooks [8]", category=COMBINE, python_module=HOOKS_MODULE, experimental=True
)
def combine_hooks_8(
    context: NodeContext,
    *,
    hooks_A: OptionalHooks = None,  # noqa: N803 - ComfyUI's spelling, here and below
    hooks_B: OptionalHooks = None,  # noqa: N803
    hooks_C: OptionalHooks = None,  # noqa: N803
    hooks_D: OptionalHooks = None,  # noqa: N803
    hooks_E: OptionalHooks = None,  # noqa: N803
    hooks_F: OptionalHooks = None,  # noqa: N803
    hooks_G: OptionalHooks = None,  # noqa: N803
    hooks_H: OptionalHooks = None,  # noqa: N803
) -> HOOKS:
    return HookGroup.combine_all_hooks((hooks_A, hooks_B, hooks_C, hooks_D, hooks_E, hooks_F, hooks_G, hooks_H))


@node(
    "SetClipHooks",
    display_name="Set CLIP Hooks",
    category="advanced/hooks/clip",
    python_module=HOOKS_MODULE,
    experimental=True,
    advanced=("apply_to_conds", "schedule_clip"),
)
def set_clip_hooks(
    context: NodeContext,
    *,
    clip: CLIP,
    apply_to_conds: Annotated[bool, Flag()] = True,
    schedule_clip: Annotated[bool, Flag()] = False,
    hooks: OptionalHooks = None,
) -> CLIP:
    """Attach hooks to a text encoder.

    With `apply_to_conds` the conditioning that it encodes carries them to the model too.
    """
    if hooks is None:
        return clip
    hooked = clip.clone()
    if apply_to_conds:
        hooked.apply_hooks_to_conds = hooks
    forced: HookGroup = hooks.clone()
    hooked.use_clip_schedule = schedule_clip
    if not schedule_clip:
        forced.set_keyframes_on_hooks(None)
    hooked.patcher.forced_hooks = forced
    hooked.patcher.register_all_hook_patches(hooks, create_target_dict(EnumWeightTarget.Clip))
    return hooked


NODES = (
    create_hook_lora_node, create_hook_lora_model_only, create_hook_model_as_lora_node,
    create_hook_model_as_lora_model_only, set_hook_keyframes, create_hook_keyframe, create_hook_keyframes_interpolated,
    create_hook_keyframes_from_floats, combine_hooks_2, combine_hooks_4, combine_hooks_8, set_clip_hooks,
)  # fmt: skip
