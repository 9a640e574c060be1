"""Functions in place of MiniMax H3's blocks, which nodes set, each upon what another node has set before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher

Arguments = Mapping[str, Any]
Function = Callable[[Arguments, Arguments], dict[str, torch.Tensor]]

BLOCK = "double_block"


class BlockFunction:
    """A function in place of a block. `previous` stood there before; None for the block itself.

    Clones of a MODEL share it.
    """

    def __init__(self, index: int, previous: Function | None) -> None:
        self.index = index
        self.previous = previous

    def __call__(self, args: Arguments, extra: Arguments) -> dict[str, torch.Tensor]:
        """Return the result for the arguments of the block."""
        return self.inner(args, extra)

    def inner(self, args: Arguments, extra: Arguments) -> dict[str, torch.Tensor]:
        """Return the result of what stood there before."""
        if self.previous is not None:
            return self.previous(args, extra)
        result: dict[str, torch.Tensor] = extra["original_block"](args)
        return result

    def __deepcopy__(self, memo: object) -> BlockFunction:
        return self

    def to(self, target: object) -> BlockFunction:
        """Move what it and what was there before hold, to a device."""
        before: Any = self.previous  # of another node, or of a pack
        if hasattr(before, "to"):
            self.previous = before.to(target)
        return self

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device."""
        before: Any = self.previous
        return list(before.models()) if hasattr(before, "models") else []


def set_in_blocks(model: Model, indices: Iterable[int], make: Callable[[int, Function | None], BlockFunction]) -> None:
    """Put functions in place of some of a model's blocks, each made from its number and what was there before."""
    replaced = model.model_options["transformer_options"].get("patches_replace", {}).get("dit", {})
    for index in indices:
        model.set_model_patch_replace(make(index, replaced.get((BLOCK, index))), "dit", BLOCK, index)
