"""Keys and values of reference images, kept from the first step of a run for the steps behind it (`FluxKVCache`).

The first call of the network keeps them, and all conditions take them: on the device while it has room, else in RAM.
`B` batch, `H` heads, `T` tokens, `W` channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from darkroom.engine.diffusion.conditions import repeat_to_batch_size

OPTION = "flux_reference_keys"  # in the transformer options, while a run keeps them
BLOCK_OPTION = "flux_reference_keys_of_block"
SPARE_BYTES = 1 << 30  # that stay free on the device: a step computes beside them
HOST = torch.device("cpu")


@dataclass(slots=True)
class ReferenceKeys:
    """Keys and values [B, H, R, W] of references, by kind and number of the block; the keys are rotated.

    `free_bytes` returns the bytes that are free on the device.
    """

    free_bytes: Callable[[], float] = lambda: math.inf
    blocks: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    @property
    def is_filled(self) -> bool:
        """True behind the first call, when references need not be computed again."""
        return bool(self.blocks)

    def keep(self, block: tuple[str, int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep the keys and values of a block, as copies."""
        num_bytes = 2 * keys.numel() * keys.element_size()
        home = keys.device if self.free_bytes() > SPARE_BYTES + num_bytes else HOST
        self.blocks[block] = keys.to(home, copy=True), values.to(home, copy=True)

    def of_block(self, kind: str, index: int, num_references: int) -> BlockKeys:
        """Return the keys and values of one block, of a number of tokens."""
        return BlockKeys(self, (kind, index), num_references)


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """Keys and values of references in one block."""

    all: ReferenceKeys
    block: tuple[str, int]
    num_references: int

    def joined(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [B, H, T, W] with those kept behind them; of the first call they are kept."""
        kept = self.all.blocks.get(self.block)
        if kept is None:
            first = k.shape[2] - self.num_references
            self.all.keep(self.block, k[:, :, first:], v[:, :, first:])
            return k, v
        keys, values = (repeat_to_batch_size(item.to(k.device), k.shape[0]) for item in kept)
        return torch.cat([k, keys], dim=2), torch.cat([v, values], dim=2)
