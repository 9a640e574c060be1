"""Keys and values of tokens that are the same in every step of a sampling run, kept from one step to the next.

They are those of a network whose text and reference images see nothing of the image that is drawn and are modulated
as of time 0. `B` batch, `H` heads, `T` tokens, `W` width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

OPTION = "prefix_states"
"""Transformer option with the `PrefixStates` of a sampling run."""

KeysValues = tuple[torch.Tensor, torch.Tensor]  # [B, H, T, W] each
Storage = Literal["default", "int8", "int4"]
LARGEST: dict[Storage, int] = {"int8": 127, "int4": 7}  # of the integers that a row is stored as
SAVED_BY: dict[Storage, int] = {"default": 1, "int8": 2, "int4": 4}  # bytes of 16 bits


class Packed(Protocol):
    """Keys or values as they are stored."""

    def unpacked(self, device: torch.device) -> torch.Tensor:
        """Return them [B, H, T, W] on a device, in the type that they came in."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """Keys or values without loss."""

    states: torch.Tensor

    def unpacked(self, device: torch.device) -> torch.Tensor:
        return self.states.to(device)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Keys or values as integers, each row by its largest magnitude; those of four bits are two to a byte."""

    rows: torch.Tensor
    scales: torch.Tensor  # [B, H, T, 1]
    has_pairs: bool

    def unpacked(self, device: torch.device) -> torch.Tensor:
        rows, scales = self.rows.to(device), self.scales.to(device)
        if self.has_pairs:
            rows = torch.stack([rows >> 4, (rows & 15) - 8], dim=-1).flatten(-2)  # the first half keeps its sign
        return rows.to(scales.dtype) * scales


def packed(states: torch.Tensor, storage: Storage, device: torch.device) -> Packed:
    """Return keys or values [B, H, T, W] as they are stored on a device; W is even."""
    if storage == "default":
        return Plain(states.to(device))
    largest = LARGEST[storage]
    scales = states.abs().amax(dim=-1, keepdim=True).float().clamp(min=torch.finfo(torch.float32).tiny) / largest
    rows = (states.float() / scales).round().clamp(-largest, largest).to(torch.int8)
    has_pairs = storage == "int4"
    if has_pairs:
        pairs = rows.reshape(*rows.shape[:-1], -1, 2)
        rows = (pairs[..., 0] << 4) | (pairs[..., 1] + 8)
    return Rounded(rows.to(device), scales.to(states.dtype).to(device), has_pairs)


class BlockStates:
    """Keys and values of one prefix in every block. Without a device they are kept for the block that computes."""

    def __init__(
        self, known_by: Sequence[torch.Tensor], num_blocks: int, device: torch.device | None, storage: Storage
    ) -> None:
        self.known_by = list(known_by)
        self._device = device
        self._storage = storage
        self._blocks: list[tuple[Packed, Packed] | None] = [None] * num_blocks

    @property
    def is_filled(self) -> bool:
        return None not in self._blocks

    def keep(self, block: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep keys and values [B, H, T, W] of a block."""
        device = self._device or keys.device
        self._blocks[block] = (packed(keys, self._storage, device), packed(values, self._storage, device))

    def take(self, block: int, device: torch.device) -> KeysValues:
        """Return the kept keys and values of a block; a value that may not stay is released."""
        kept = self._blocks[block]
        if kept is None:
            raise LookupError(f"block: no keys and values are kept; got {block}")
        if self._device is None:
            self._blocks[block] = None
        return kept[0].unpacked(device), kept[1].unpacked(device)


class PrefixStates:
    """The prefixes that are kept of one sampling run: one for each condition.

    `place_for` returns the device for so many bytes of one that computes on the given device, None where nothing has
    room for them: that prefix is then computed in every step.
    """

    def __init__(
        self, place_for: Callable[[int, torch.device], torch.device | None], storage: Storage = "default"
    ) -> None:
        self._place_for = place_for
        self._storage = storage
        self._kept: list[BlockStates] = []

    def of(self, known_by: Sequence[torch.Tensor], num_blocks: int, num_bytes: int) -> BlockStates:
        """Return the states kept for the prefix of these tensors, empty for a new one, which takes `num_bytes`."""
        found = next((item for item in self._kept if _are_equal(item.known_by, known_by)), None)
        if found is not None and found.is_filled:
            return found
        device = self._place_for(num_bytes // SAVED_BY[self._storage], known_by[0].device)
        made = BlockStates(known_by, num_blocks, device, self._storage)
        if device is not None:
            self._kept = [item for item in self._kept if item is not found] + [made]
        return made


def _are_equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        one.shape == other.shape and torch.equal(one, other) for one, other in zip(first, second, strict=True)
    )
