"""Keys and values of the tokens that the layers of a language model have seen, while it writes text."""

from __future__ import annotations

import torch


class KeysValues:
    """Keys and values [B, H, T, W] of the tokens that a layer has seen."""

    def __init__(self) -> None:
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def num_tokens(self) -> int:
        return 0 if self._held is None else self._held[0].shape[2]

    def extended(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of further tokens, and return all."""
        if self._held is not None:
            keys, values = (torch.cat(pair, dim=2) for pair in zip(self._held, (keys, values), strict=True))
        self._held = keys, values
        return self._held
