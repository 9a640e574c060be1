"""A weight of one model in the patches of another, as merging puts it there."""

from __future__ import annotations

from typing import Protocol

import torch


class GivesOriginals(Protocol):
    def original_weight(self, key: str) -> torch.Tensor: ...


class BorrowedWeight:
    """Stands for the unpatched weight, which is looked up when it is needed.

    So the patch holds the model it comes from, in the pool like any other, and no tensor of it: when RAM is short the
    weights leave, and are read from their file again.
    """

    __slots__ = ("_key", "_weights")

    def __init__(self, weights: GivesOriginals, key: str) -> None:
        self._weights = weights
        self._key = key

    def to(self, like: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
        """The values, where and as what `like` is."""
        return self._weights.original_weight(self._key).to(like, copy=copy)
