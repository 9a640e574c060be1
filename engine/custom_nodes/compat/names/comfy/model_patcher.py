"""`comfy.model_patcher`: any network as a value, and its option dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.custom_nodes.compat.names.comfy.patcher_extension import PatcherInjection
from engine.diffusion.wrappers import copy_options
from engine.values.module_patcher import ModulePatcher as ModelPatcher

__all__ = ["ModelPatcher", "PatcherInjection"]

Options = dict[str, Any]


def create_model_options_clone(orig_model_options: Options) -> Options:
    return copy_options(orig_model_options)


def set_model_options_patch_replace(
    model_options: Options, patch: object, name: str, block_name: str, number: int, transformer_index: int | None = None
) -> Options:
    """Return options in which `patch` replaces one block's attention."""
    options = copy_options(model_options)
    replaced = options.setdefault("transformer_options", {}).setdefault("patches_replace", {}).setdefault(name, {})
    block = (block_name, number) if transformer_index is None else (block_name, number, transformer_index)
    replaced[block] = patch
    return options


def set_model_options_post_cfg_function(
    model_options: Options, post_cfg_function: Callable[..., object], disable_cfg1_optimization: bool = False
) -> Options:
    return _append(model_options, "sampler_post_cfg_function", post_cfg_function, disable_cfg1_optimization)


def set_model_options_pre_cfg_function(
    model_options: Options, pre_cfg_function: Callable[..., object], disable_cfg1_optimization: bool = False
) -> Options:
    return _append(model_options, "sampler_pre_cfg_function", pre_cfg_function, disable_cfg1_optimization)


def _append(model_options: Options, name: str, function: Callable[..., object], disable_cfg1: bool) -> Options:
    model_options[name] = [*model_options.get(name, []), function]
    if disable_cfg1:
        model_options["disable_cfg1_optimization"] = True
    return model_options
