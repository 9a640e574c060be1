"""Keys and values of the tokens that the layers of a language model have seen, while it writes text."""

from __future__ import annotations

import torch


class KeysValues:
    """Keys and values [B, H, T, W] of the tokens that a layer has seen.

    With `capacity` there is room for so many tokens from the first one on, so that further ones copy no earlier ones.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None
        self._room: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def num_tokens(self) -> int:
        return 0 if self._held is None else self._held[0].shape[2]

    def extended(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of further tokens, and return all."""
        first, length = self.num_tokens, self.num_tokens + keys.shape[2]
        if length > self._capacity:
            if self._held is not None:
                keys, values = (torch.cat(pair, dim=2) for pair in zip(self._held, (keys, values), strict=True))
            self._held = keys, values
            return self._held
        if self._room is None:
            made = (item.new_empty(*item.shape[:2], self._capacity, item.shape[3]) for item in (keys, values))
            self._room = next(made), next(made)
        for room, new in zip(self._room, (keys, values), strict=True):
            room[:, :, first:length] = new
        self._held = self._room[0][:, :, :length], self._room[1][:, :, :length]
        return self._held
