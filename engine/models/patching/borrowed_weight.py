"""A weight of one model used as a patch of another, as model merging needs it."""

from __future__ import annotations

from typing import Protocol

import torch


class GivesOriginals(Protocol):
    def original_weight(self, key: str) -> torch.Tensor: ...


class BorrowedWeight:
    """Reference to an unpatched weight of another model, resolved when it is needed.

    The patch therefore holds the other model, in the pool like any other, and none of its tensors. When RAM is short
    the weights can be evicted and read from their file again.
    """

    __slots__ = ("_key", "_weights")

    def __init__(self, weights: GivesOriginals, key: str) -> None:
        self._weights = weights
        self._key = key

    def to(self, like: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
        """Return the values on the device and in the type of `like`."""
        return self._weights.original_weight(self._key).to(like, copy=copy)
