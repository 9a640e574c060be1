"""`comfy.model_patcher`: any network as a value, and its option dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.names.comfy.patcher_extension import PatcherInjection
from darkroom.engine.comfy.torch_types import DeviceLike
from darkroom.engine.diffusion.wrappers import copy_options
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher

__all__ = ["ModelPatcher", "PatcherInjection"]

Options = dict[str, Any]


class ModelPatcher(Model):
    """A network that a pack built, as a value. Every network of the engine counts as an instance of it.

    Model memory decides what of it is on the device, so that the calls by which ComfyUI moves weights only load them,
    or undo what such a call has changed. The devices that are given say whether it computes on the CPU.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        load_device: DeviceLike | None = None,
        offload_device: DeviceLike | None = None,
        size: int = 0,
        weight_inplace_update: bool = False,
    ) -> None:
        super().__init__(HOST.get().networks.weights_of(model, load_device))

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return self.model_size()

    @size.setter
    def size(self, num_bytes: int) -> None:
        """Ignore what packs set, 0 for a new count: it is counted in any case."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        return True if cls is ModelPatcher and issubclass(subclass, ModulePatcher) else NotImplemented


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
