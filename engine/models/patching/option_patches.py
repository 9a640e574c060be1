"""Functions in a MODEL's options that have tensors or networks of their own: moved to the device, and loaded along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from darkroom.engine.diffusion.options import Options


def move_patches(model_options: dict[str, Any], target: torch.device | torch.dtype | str) -> None:
    """Replace each function that has a method `to` by what that returns."""
    for slots, key in _places(model_options):
        if hasattr(slots[key], "to"):
            slots[key] = slots[key].to(target)


def models_of_patches(model_options: Options) -> list[object]:
    """Return the models that functions need on the device, which their method `models` returns."""
    found: list[Any] = []
    for slots, key in _places(dict(model_options)):
        if hasattr(slots[key], "models"):
            found.extend(slots[key].models())
    return found


def _places(model_options: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the list or dictionary, and the place in it, of each function."""
    transformer_options = model_options.get("transformer_options", {})
    for functions in transformer_options.get("patches", {}).values():
        for index in range(len(functions)):
            yield functions, index
    for by_block in transformer_options.get("patches_replace", {}).values():
        for block in list(by_block):
            yield by_block, block
    if "model_function_wrapper" in model_options:
        yield model_options, "model_function_wrapper"
