"""HOOKS and HOOK_KEYFRAMES: changes of the model that apply while it works on one condition.

Members are ComfyUI's. A hook's clones share its `hook_ref`: they are equal, and stand for the same weights. Strength
may follow keyframes; `t` and `start_t` are sigmas, which fall as sampling goes on.
"""

from __future__ import annotations

import enum
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.wrappers import merge_options
from darkroom.engine.log_context import report_warning
from darkroom.engine.models.patching.lora_keys import TEXT_STARTS, denoiser_lora_keys, renamed_lora, text_lora_keys

log = logging.getLogger(__name__)

BEFORE_EVERYTHING = 999999999.9  # a sigma above all others


class EnumHookMode(enum.Enum):
    """Caching of weights patched by hooks while the model is in use."""

    MinVram = "minvram"
    MaxSpeed = "maxspeed"


class EnumHookType(enum.Enum):
    Weight = "weight"
    ObjectPatch = "object_patch"
    AdditionalModels = "add_models"
    TransformerOptions = "transformer_options"
    Injections = "add_injections"


class EnumWeightTarget(enum.Enum):
    Model = "model"
    Clip = "clip"


class EnumHookScope(enum.Enum):
    """Scope of a hook: every condition, or only those it is attached to."""

    AllConditioning = "all_conditioning"
    HookedOnly = "hooked_only"


class HookRef:
    """Identity shared by the clones of a hook."""


# --- keyframes -------------------------------------------------------------------------------------------------------


class HookKeyframe:
    """A factor of the strength from `start_percent` of sampling on, for at least `guarantee_steps` steps."""

    def __init__(self, strength: float, start_percent: float = 0.0, guarantee_steps: int = 1) -> None:
        self.strength = float(strength)
        self.start_percent = float(start_percent)
        self.start_t = BEFORE_EVERYTHING
        self.guarantee_steps = guarantee_steps

    def get_effective_guarantee_steps(self, max_sigma: torch.Tensor | float) -> int:
        """Return the guaranteed steps: none for a keyframe that starts before this sampling does."""
        return 0 if self.start_t > max_sigma else self.guarantee_steps

    def clone(self) -> HookKeyframe:
        other = HookKeyframe(self.strength, self.start_percent, self.guarantee_steps)
        other.start_t = self.start_t
        return other


class HookKeyframeGroup:
    """Keyframes ordered by start, and the current one."""

    def __init__(self) -> None:
        self.keyframes: list[HookKeyframe] = []
        self._current_keyframe: HookKeyframe | None = None
        self._current_used_steps = 0
        self._current_index = 0
        self._current_t: float | torch.Tensor = -1.0

    @property
    def strength(self) -> float:
        return 1.0 if self._current_keyframe is None else self._current_keyframe.strength

    def is_empty(self) -> bool:
        return not self.keyframes

    def add(self, keyframe: HookKeyframe) -> None:
        self.keyframes = sorted([*self.keyframes, keyframe], key=lambda item: item.start_percent)
        self.reset()

    def clone(self) -> HookKeyframeGroup:
        other = HookKeyframeGroup()
        other.keyframes = [keyframe.clone() for keyframe in self.keyframes]
        other.reset()
        return other

    def reset(self) -> None:
        """Make the first keyframe current."""
        self._current_keyframe = self.keyframes[0] if self.keyframes else None
        self._current_used_steps = 0
        self._current_index = 0
        self._current_t = -1.0

    def set_current(self, keyframe: HookKeyframe | None) -> None:
        self._current_keyframe = keyframe

    def initialize_timesteps(self, model: Any) -> None:
        for keyframe in self.keyframes:
            keyframe.start_t = model.model_sampling.percent_to_sigma(keyframe.start_percent)

    def prepare_current_keyframe(self, curr_t: float | torch.Tensor, transformer_options: Options) -> bool:
        """Advance to the keyframe for `curr_t`, however often a step calls it.

        Return True if another one became current.
        """
        if self._current_keyframe is None or curr_t == self._current_t:
            return False
        max_sigma = torch.max(on_host(transformer_options["sample_sigmas"]))
        before = self._current_index
        if self._current_used_steps >= self._current_keyframe.get_effective_guarantee_steps(max_sigma):
            for index in range(self._current_index + 1, len(self.keyframes)):
                candidate = self.keyframes[index]
                if candidate.start_t < curr_t:
                    break
                self._current_index, self._current_keyframe, self._current_used_steps = index, candidate, 0
                if candidate.get_effective_guarantee_steps(max_sigma) > 0:
                    break
        self._current_used_steps += 1
        self._current_t = curr_t
        return self._current_index != before

    def strength_ranges(self) -> list[tuple[tuple[float, float], HookKeyframe | None]]:
        """Return ranges of percent of equal strength, each with the keyframe that sets it."""
        if not self.keyframes:
            return [((0.0, 1.0), None)]
        ranges: list[tuple[tuple[float, float], HookKeyframe | None]] = []
        current = self.keyframes[0]
        for keyframe in self.keyframes:
            if keyframe.start_percent == current.start_percent:
                current = keyframe
            elif not math.isclose(keyframe.strength, current.strength):
                ranges.append(((current.start_percent, keyframe.start_percent), current))
                current = keyframe
        if not math.isclose(current.start_percent, 1.0):
            ranges.append(((current.start_percent, 1.0), current))
        return ranges


# --- hooks -----------------------------------------------------------------------------------------------------------


def default_should_register(
    hook: object, model: object, model_options: object, target_dict: object, registered: object
) -> bool:
    return True


class Hook:
    hook_type: EnumHookType | None = None

    def __init__(self, hook_scope: EnumHookScope = EnumHookScope.AllConditioning) -> None:
        self.hook_ref = HookRef()
        self.hook_id: str | None = None
        self.hook_keyframe = HookKeyframeGroup()
        self.hook_scope = hook_scope
        self.custom_should_register: Callable[..., bool] = default_should_register

    @property
    def strength(self) -> float:
        return self.hook_keyframe.strength

    def initialize_timesteps(self, model: object) -> None:
        self.reset()
        self.hook_keyframe.initialize_timesteps(model)

    def reset(self) -> None:
        self.hook_keyframe.reset()

    def clone(self) -> Hook:
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__)
        return other

    def should_register(
        self, model: object, model_options: object, target_dict: Mapping[str, object], registered: HookGroup
    ) -> bool:
        return self.custom_should_register(self, model, model_options, target_dict, registered)

    def add_hook_patches(
        self, model: object, model_options: object, target_dict: Mapping[str, object], registered: HookGroup
    ) -> bool:
        """Prepare the model for this hook and record it as registered.

        Return False if the hook is not to be registered.
        """
        if not self.should_register(model, model_options, target_dict, registered):
            return False
        self._prepare(model, model_options, target_dict)
        registered.add(self)
        return True

    def _prepare(self, model: Any, model_options: Any, target_dict: Mapping[str, Any]) -> None:
        """Apply the preparation of this kind of hook to the model."""

    def __eq__(self, other: object) -> bool:
        return self.__class__ is other.__class__ and self.hook_ref is other.hook_ref

    def __hash__(self) -> int:
        return hash(self.hook_ref)


class WeightHook(Hook):
    """Hook that patches weights: those of a LoRA file (`need_weight_init`), or patches by weight name."""

    hook_type = EnumHookType.Weight

    def __init__(self, strength_model: float = 1.0, strength_clip: float = 1.0) -> None:
        super().__init__(EnumHookScope.HookedOnly)
        self.weights: Mapping[str, Any] | None = None
        self.weights_clip: Mapping[str, Any] | None = None
        self.need_weight_init = True
        self._strength_model = strength_model
        self._strength_clip = strength_clip

    @property
    def strength_model(self) -> float:
        return self._strength_model * self.strength

    @property
    def strength_clip(self) -> float:
        return self._strength_clip * self.strength

    def _prepare(self, model: Any, model_options: Any, target_dict: Mapping[str, Any]) -> None:
        is_clip = target_dict.get("target") is EnumWeightTarget.Clip
        strength = self._strength_clip if is_clip else self._strength_model
        given = (self.weights_clip if is_clip and not self.need_weight_init else self.weights) or {}
        patches: Mapping[Any, Any] = given
        if self.need_weight_init:
            keys = text_lora_keys(model.model) if is_clip else denoiser_lora_keys(model.model)
            patches = lora_patches(renamed_lora(None if is_clip else model.model, given), keys, warn=False)
            is_of_text = any(name.startswith(TEXT_STARTS) for name in given)
            if given and not patches and not is_clip and not is_of_text:
                message = (
                    f"hook: its LoRA has no effect, since none of its keys is one of the model; got {min(given)!r}"
                )
                report_warning(log, "lora_without_effect", message)
        model.add_hook_patches(hook=self, patches=patches, strength_patch=strength)


class TransformerOptionsHook(Hook):
    """Hook that adds wrappers, callbacks and patches to the options the network is called with."""

    hook_type = EnumHookType.TransformerOptions

    def __init__(
        self,
        transformers_dict: Mapping[str, object] | None = None,
        hook_scope: EnumHookScope = EnumHookScope.AllConditioning,
    ) -> None:
        super().__init__(hook_scope)
        self.transformers_dict = dict(transformers_dict or {})
        self._is_in_all_options = False

    def _prepare(self, model: Any, model_options: dict[str, Any], target_dict: Mapping[str, Any]) -> None:
        self._is_in_all_options = self.hook_scope is EnumHookScope.AllConditioning
        if self._is_in_all_options:
            added = merge_options(model_options, {"transformer_options": self.transformers_dict})
            model_options.update(added)

    def on_apply_hooks(self, model: Any, transformer_options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of this hook, unless every condition has them already."""
        return merge_options(transformer_options, {} if self._is_in_all_options else self.transformers_dict)


class AdditionalModelsHook(Hook):
    """Hook that names models which have to be on the device while the condition is sampled."""

    hook_type = EnumHookType.AdditionalModels

    def __init__(self, models: Sequence[object] | None = None, key: str | None = None) -> None:
        super().__init__()
        self.models = list(models or ())
        self.key = key


class HookGroup:
    """HOOKS: hooks in the order they were added, each once."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self.hooks: list[Hook] = []
        for hook in hooks:
            self.add(hook)

    def __len__(self) -> int:
        return len(self.hooks)

    def add(self, hook: Hook) -> None:
        if hook not in self.hooks:
            self.hooks.append(hook)

    def remove(self, hook: Hook) -> None:
        if hook in self.hooks:
            self.hooks.remove(hook)

    def get_type(self, hook_type: EnumHookType) -> list[Any]:
        return [hook for hook in self.hooks if hook.hook_type is hook_type]

    def contains(self, hook: Hook) -> bool:
        return hook in self.hooks

    def is_subset_of(self, other: HookGroup) -> bool:
        return set(self.hooks) <= set(other.hooks)

    def new_with_common_hooks(self, other: HookGroup) -> HookGroup:
        return HookGroup(hook.clone() for hook in self.hooks if other.contains(hook))

    def clone(self) -> HookGroup:
        return HookGroup(hook.clone() for hook in self.hooks)

    def clone_and_combine(self, other: HookGroup | None) -> HookGroup:
        return HookGroup(hook.clone() for hook in (*self.hooks, *(other.hooks if other is not None else ())))

    def set_keyframes_on_hooks(self, hook_kf: HookKeyframeGroup | None) -> None:
        """Give all hooks one group of keyframes, a copy of `hook_kf`, or remove keyframes for None."""
        keyframes = HookKeyframeGroup() if hook_kf is None else hook_kf.clone()
        for hook in self.hooks:
            hook.hook_keyframe = keyframes

    def reset(self) -> None:
        for hook in self.hooks:
            hook.reset()

    def get_hooks_for_clip_schedule(
        self,
    ) -> list[tuple[tuple[float, float], list[tuple[WeightHook, HookKeyframe | None]]]]:
        """Return ranges of percent in which no weight hook changes its strength, with each hook's keyframe there."""
        ranges = {hook: hook.hook_keyframe.strength_ranges() for hook in self.get_type(EnumHookType.Weight)}
        bounds = sorted({0.0, *itertools.chain.from_iterable(span for spans in ranges.values() for span, _ in spans)})
        schedule = []
        for start, end in itertools.pairwise(bounds):
            keyframes = [
                (hook, next((keyframe for (low, high), keyframe in spans if low < end and high > start), None))
                for hook, spans in ranges.items()
            ]
            schedule.append(((start, end), keyframes))
        return schedule

    @staticmethod
    def combine_all_hooks(hooks_list: Iterable[HookGroup | None], require_count: int = 0) -> HookGroup | None:
        """Combine groups into one: None for no groups, the group itself for a single one.

        Raises ValueError when there are fewer than `require_count`.
        """
        groups = [group for group in hooks_list if group is not None]
        if len(groups) < require_count:
            raise ValueError(f"{require_count} groups of hooks are needed, and there are {len(groups)}")
        if len(groups) <= 1:
            return groups[0] if groups else None
        return HookGroup(hook.clone() for group in groups for hook in group.hooks)


def create_target_dict(target: EnumWeightTarget | None = None, **kwargs: Any) -> dict[str, Any]:
    return {**({} if target is None else {"target": target}), **kwargs}


def create_hook_lora(lora: Mapping[str, torch.Tensor], strength_model: float, strength_clip: float) -> HookGroup:
    hook = WeightHook(strength_model, strength_clip)
    hook.weights = lora
    return HookGroup([hook])


def create_hook_model_as_lora(
    weights_model: Mapping[str, object] | None,
    weights_clip: Mapping[str, object] | None,
    strength_model: float,
    strength_clip: float,
) -> HookGroup:
    """Make a hook from the difference between other weights (tensors, or `BorrowedWeight`s) and the hooked model's."""
    hook = WeightHook(strength_model, strength_clip)
    hook.weights = {name: ("model_as_lora", (weight,)) for name, weight in (weights_model or {}).items()}
    hook.weights_clip = {name: ("model_as_lora", (weight,)) for name, weight in (weights_clip or {}).items()}
    hook.need_weight_init = False
    return HookGroup([hook])
