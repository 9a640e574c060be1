"""`comfy.patcher_extension`: wrappers and callbacks that packs attach to a MODEL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.diffusion import wrappers
from engine.diffusion.wrappers import WrapperExecutor, copy_options, merge_options
from engine.graph.spec import Values
from engine.values import hooked_weights, patcher_registries

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


def get_all_wrappers(
    wrapper_type: str, transformer_options: Mapping[str, object], is_model_options: bool = False
) -> Functions:
    return wrappers.wrappers_of(wrapper_type, _registry(transformer_options, is_model_options))


def get_wrappers_with_key(
    wrapper_type: str, key: str | None, transformer_options: Mapping[str, object], is_model_options: bool = False
) -> Functions:
    return _with_key("wrappers", wrapper_type, key, _registry(transformer_options, is_model_options))


def get_all_callbacks(
    call_type: str, transformer_options: Mapping[str, object], is_model_options: bool = False
) -> Functions:
    return wrappers.callbacks_of(call_type, _registry(transformer_options, is_model_options))


def get_callbacks_with_key(
    call_type: str, key: str | None, transformer_options: Mapping[str, object], is_model_options: bool = False
) -> Functions:
    return _with_key("callbacks", call_type, key, _registry(transformer_options, is_model_options))


def add_wrapper(
    wrapper_type: str, wrapper: object, transformer_options: Options, is_model_options: bool = False
) -> None:
    add_wrapper_with_key(wrapper_type, None, wrapper, transformer_options, is_model_options)


def add_wrapper_with_key(
    wrapper_type: str, key: str | None, wrapper: object, transformer_options: Options, is_model_options: bool = False
) -> None:
    _add("wrappers", wrapper_type, key, wrapper, transformer_options, is_model_options)


def add_callback(
    call_type: str, callback: object, transformer_options: Options, is_model_options: bool = False
) -> None:
    add_callback_with_key(call_type, None, callback, transformer_options, is_model_options)


def add_callback_with_key(
    call_type: str, key: str | None, callback: object, transformer_options: Options, is_model_options: bool = False
) -> None:
    _add("callbacks", call_type, key, callback, transformer_options, is_model_options)


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


def _registry(options: Values, is_model_options: bool) -> Values:
    registry: Mapping[str, Any] = options.get("transformer_options", {}) if is_model_options else options
    return registry


def _with_key(kind: str, name: str, key: str | None, registry: Values) -> Functions:
    return list(registry.get(kind, {}).get(name, {}).get(key, ()))


def _add(kind: str, name: str, key: str | None, function: Any, options: dict[str, Any], is_model_options: bool) -> None:
    registry = options.setdefault("transformer_options", {}) if is_model_options else options
    registry.setdefault(kind, {}).setdefault(name, {}).setdefault(key, []).append(function)
