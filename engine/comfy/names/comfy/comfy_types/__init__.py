"""`comfy.comfy_types`: names and types for declaring nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypedDict

import torch

from darkroom.engine.comfy.names.comfy.comfy_types.node_typing import (
    IO,
    CheckLazyMixin,
    ComfyNodeABC,
    FileLocator,
    InputTypeDict,
)

__all__ = [
    "IO",
    "CheckLazyMixin",
    "ComfyNodeABC",
    "FileLocator",
    "InputTypeDict",
    "UnetApplyConds",
    "UnetApplyFunction",
    "UnetParams",
    "UnetWrapperFunction",
]


class UnetApplyFunction(Protocol):
    """Protocol of the parameterised network, as a `model_function_wrapper` calls it."""

    def __call__(self, x: torch.Tensor, t: torch.Tensor, **kwargs: object) -> torch.Tensor: ...


class UnetApplyConds(TypedDict, total=False):
    c_concat: torch.Tensor | None
    c_crossattn: torch.Tensor | None
    control: dict[str, Any] | None
    transformer_options: dict[str, Any] | None


class UnetParams(TypedDict):
    """Arguments of a `model_function_wrapper`; `cond_or_uncond` has 0 for each positive, 1 for each negative part."""

    input: torch.Tensor
    timestep: torch.Tensor
    c: UnetApplyConds
    cond_or_uncond: list[int]


UnetWrapperFunction = Callable[[UnetApplyFunction, UnetParams], torch.Tensor]
