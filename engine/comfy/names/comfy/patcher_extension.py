"""`comfy.patcher_extension`: wrappers and callbacks that packs attach to a MODEL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from darkroom.contract.graph.spec import Values
from darkroom.engine.diffusion import wrappers
from darkroom.engine.diffusion.wrappers import WrapperExecutor, copy_options, merge_options
from darkroom.engine.models.patching import hooked_weights, patcher_registries

__all__ = ["WrapperExecutor"]


class PatcherInjection:
    """Functions that change a MODEL's network before it samples and undo that afterwards (`set_injections`)."""

    def __init__(self, inject: Callable[[object], None], eject: Callable[[object], None]) -> None:
        self.inject = inject
        self.eject = eject


Functions = list[Callable[..., Any]]


class WrappersMP:
    """Names of what can be wrapped."""

    OUTER_SAMPLE = wrappers.OUTER_SAMPLE
    PREPARE_SAMPLING = wrappers.PREPARE_SAMPLING
    SAMPLER_SAMPLE = wrappers.SAMPLER_SAMPLE
    PREDICT_NOISE = wrappers.PREDICT_NOISE
    CALC_COND_BATCH = wrappers.CALC_COND_BATCH
    APPLY_MODEL = wrappers.APPLY_MODEL
    DIFFUSION_MODEL = wrappers.DIFFUSION_MODEL

    @classmethod
    def init_wrappers(cls) -> dict[str, dict[str | None, Functions]]:
        return {}


class CallbacksMP:
    """Names of the events that call a callback."""

    ON_CLONE = patcher_registries.CALL_ON_CLONE
    ON_LOAD = patcher_registries.CALL_ON_LOAD
    ON_DETACH = patcher_registries.CALL_ON_DETACH
    ON_CLEANUP = patcher_registries.CALL_ON_CLEANUP
    ON_PRE_RUN = patcher_registries.CALL_ON_PRE_RUN
    ON_PREPARE_STATE = patcher_registries.CALL_ON_PREPARE_STATE
    ON_APPLY_HOOKS = hooked_weights.CALL_ON_APPLY_HOOKS
    ON_REGISTER_ALL_HOOK_PATCHES = hooked_weights.CALL_ON_REGISTER_ALL_HOOK_PATCHES
    ON_INJECT_MODEL = patcher_registries.CALL_ON_INJECT_MODEL
    ON_EJECT_MODEL = patcher_registries.CALL_ON_EJECT_MODEL

    @classmethod
    def init_callbacks(cls) -> dict[str, dict[str | None, Functions]]:
        return {}


Options = dict[str, Any]


class _Registered:
    """Functions of one kind in a model's options, by what they are called for and by their packs' keys."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def get_all(self, name: str, transformer_options: Values, is_model_options: bool = False) -> Functions:
        by_key = self._by_name(transformer_options, is_model_options).get(name, {})
        return [function for functions in by_key.values() for function in functions]

    def get_with_key(
        self, name: str, key: str | None, transformer_options: Values, is_model_options: bool = False
    ) -> Functions:
        return list(self._by_name(transformer_options, is_model_options).get(name, {}).get(key, ()))

    def add(self, name: str, function: object, transformer_options: Options, is_model_options: bool = False) -> None:
        self.add_with_key(name, None, function, transformer_options, is_model_options)

    def add_with_key(
        self,
        name: str,
        key: str | None,
        function: object,
        transformer_options: Options,
        is_model_options: bool = False,
    ) -> None:
        options = transformer_options
        registry = options.setdefault("transformer_options", {}) if is_model_options else options
        registry.setdefault(self._kind, {}).setdefault(name, {}).setdefault(key, []).append(function)

    def _by_name(self, options: Values, is_model_options: bool) -> Mapping[str, Mapping[str | None, Functions]]:
        registry: Values = options.get("transformer_options", {}) if is_model_options else options
        found: Mapping[str, Mapping[str | None, Functions]] = registry.get(self._kind, {})
        return found


_WRAPPERS, _CALLBACKS = _Registered("wrappers"), _Registered("callbacks")
get_all_wrappers, get_wrappers_with_key = _WRAPPERS.get_all, _WRAPPERS.get_with_key
get_all_callbacks, get_callbacks_with_key = _CALLBACKS.get_all, _CALLBACKS.get_with_key
add_wrapper, add_wrapper_with_key = _WRAPPERS.add, _WRAPPERS.add_with_key
add_callback, add_callback_with_key = _CALLBACKS.add, _CALLBACKS.add_with_key


def copy_nested_dicts(input_dict: Mapping[str, object]) -> dict[str, object]:
    return copy_options(input_dict)


def merge_nested_dicts(
    dict1: Mapping[str, object], dict2: Mapping[str, object], copy_dict1: bool = True
) -> dict[str, object]:
    """Merge two nested dictionaries; with `copy_dict1=False` the first one is changed."""
    merged = merge_options(dict1, dict2)
    if copy_dict1 or not isinstance(dict1, dict):
        return merged
    dict1.update(merged)
    return dict1
