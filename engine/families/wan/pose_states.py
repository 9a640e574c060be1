"""Inputs of the blocks for a video of poses, kept between the steps of one sampling run of Wan-Animate 2.

That video is without noise, so it is the same in every step. `B` batch, `T` tokens, `D` hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from darkroom.engine.formats.quantised.comfy_quant import hadamard

OPTION = "animate2_cache"
"""Transformer option with the `PoseStates` of a sampling run."""

LARGEST_ROTATION, SMALLEST_ROTATION = 256, 4  # channels that are mixed before they are rounded
Storage = Literal["default", "int8", "int4"]
LEAST: dict[Storage, float] = {"int8": 1e-30, "int4": 1e-10}  # of a scale, and of the magnitude that gives it
LARGEST: dict[Storage, int] = {"int8": 127, "int4": 7}  # of the integers that a token is stored as
SAVED_BY: dict[Storage, int] = {"default": 1, "int8": 2, "int4": 4}  # bytes of 16 bits


class Packed(Protocol):
    """Tokens as they are stored."""

    def unpacked(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Return the tokens [1, T, D] on a device."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """Tokens without loss."""

    tokens: torch.Tensor

    def unpacked(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        return self.tokens.to(device, dtype)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Tokens as integers by their largest magnitude, their channels mixed in groups before (ConvRot).

    `rows` [T, D] are int8, or [T, D / 2] uint8 of two integers of four bits each; `scales` [T, 1] are float32.
    """

    rows: torch.Tensor
    scales: torch.Tensor
    rotation: int
    is_halved: bool

    def unpacked(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        rows, scales = self.rows.to(device), self.scales.to(device)
        if self.is_halved:
            rows = torch.stack([rows & 15, rows >> 4], dim=-1).flatten(1).to(torch.int8) - 8
        return _mixed(rows.float() * scales, self.rotation).to(dtype)[None]


def _mixed(rows: torch.Tensor, rotation: int) -> torch.Tensor:
    """Return rows [T, D] with the channels of each group mixed by a matrix that is its own inverse."""
    matrix = hadamard(rotation, rows.device).to(rows.dtype)
    return torch.matmul(rows.reshape(len(rows), -1, rotation), matrix).flatten(1)


def packed(tokens: torch.Tensor, storage: Storage, device: torch.device) -> Packed:
    """Return tokens [1, T, D] as they are stored on a device; D is a multiple of four."""
    if storage == "default":
        return Plain(tokens.to(device, copy=True))
    rotation = LARGEST_ROTATION
    while rotation > SMALLEST_ROTATION and tokens.shape[-1] % rotation:
        rotation //= 4
    rows = _mixed(tokens[0], rotation)
    magnitudes, largest = rows.abs().amax(dim=-1, keepdim=True), LARGEST[storage]
    is_halved = storage == "int4"
    if is_halved:
        scales = magnitudes.clamp(min=LEAST[storage]) / largest
    else:
        scales = (magnitudes.float() / largest).clamp(min=LEAST[storage])
    numbers = (rows / scales.to(rows.dtype)).round().clamp(-largest - (not is_halved), largest).to(torch.int8)
    if is_halved:
        pairs = (numbers + 8).to(torch.uint8).reshape(len(rows), -1, 2)
        numbers = pairs[..., 0] | (pairs[..., 1] << 4)
    return Rounded(numbers.to(device), scales.float().to(device), rotation, is_halved)


class PoseSlot:
    """Inputs of each block for one video of poses."""

    def __init__(self, latents: torch.Tensor, device: torch.device, storage: Storage) -> None:
        self.latents = latents  # [1, C, f, h, w], by which the video is known
        self._device, self._storage = device, storage
        self._blocks: list[Packed] = []

    def is_filled(self, num_blocks: int) -> bool:
        """Return True where the tokens of all blocks are kept."""
        return len(self._blocks) == num_blocks

    def begin(self) -> None:
        """Forget what a computation that was interrupted has kept."""
        self._blocks.clear()

    def keep(self, tokens: torch.Tensor) -> None:
        """Keep the tokens [B, T, D] that enter the next block, those of the first item."""
        self._blocks.append(packed(tokens[:1], self._storage, self._device))

    def take(self, index: int, like: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, T, D] that enter a block, for the batch, device and type of `like`."""
        tokens = self._blocks[index].unpacked(like.device, like.dtype)
        return tokens.expand(like.shape[0], -1, -1)


class PoseStates:
    """The videos of poses that are kept of one sampling run: one, or one for each context window.

    `place_for` returns the device for so many bytes of one that computes on the given device, None where there is no
    room for them. Slots that were not used for the longest time make room for new ones.
    """

    def __init__(
        self, place_for: Callable[[int, torch.device], torch.device | None], storage: Storage = "default"
    ) -> None:
        self._place_for, self._storage = place_for, storage
        self._slots: list[PoseSlot] = []  # the one that was used last comes last

    def of(self, latents: torch.Tensor, num_bytes: int) -> PoseSlot | None:
        """Return the slot of a video of poses [B, C, f, h, w], known by its first item; an empty one for a new one.

        `num_bytes` are those of all that enters the blocks for that item. None where nothing has room for them.
        """
        first = latents[:1]
        found = next((slot for slot in self._slots if _are_equal(slot.latents, first)), None)
        if found is not None:
            self._slots.remove(found)
        else:
            device = self._place_for(num_bytes // SAVED_BY[self._storage], latents.device)
            while device is None and self._slots:
                self._slots.pop(0)
                device = self._place_for(num_bytes // SAVED_BY[self._storage], latents.device)
            if device is None:
                return None
            found = PoseSlot(first.clone(), device, self._storage)
        self._slots.append(found)
        return found


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
