"""Packings: how the values of a quantised tensor are read from its codes (`engine/memory/offload/packing.py`)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from darkroom.engine.formats.weight_file import WeightFile

VALUES_AT_ONCE = 1 << 22
WORKING_BYTES_PER_VALUE = 16  # of the integers and numbers between codes and values


@dataclass(frozen=True)
class Packing(ABC):
    """Base of all packings. `shape` is that of the values.

    `scales` are the names of the layer's buffers with the scales, in the type of which they are kept.
    """

    shape: torch.Size
    scales: tuple[str, ...] = ()

    @property
    def is_by_rows(self) -> bool:
        """True where rows of codes can be unpacked by themselves."""
        return False

    @property
    def working_bytes(self) -> int:
        """Bytes that unpacking takes besides codes and values."""
        return min(math.prod(self.shape), VALUES_AT_ONCE) * WORKING_BYTES_PER_VALUE

    def of_shape(self, shape: torch.Size) -> Self:
        """Return the packing of values of another shape of as many."""
        return replace(self, shape=shape)

    @abstractmethod
    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        """Write the values of `codes` to `values`."""

    @property
    def can_pack(self) -> bool:
        """True where patched values are packed again; else they are patched anew in each call of the layer."""
        return False

    def before_rounding(self, values: torch.Tensor) -> torch.Tensor:
        """Return the numbers, float32, that are rounded to the codes' type for patched `values`.

        Raises TypeError for a packing that cannot pack (`can_pack`).
        """
        raise TypeError(f"{type(self).__name__}: patched values are not packed again; expected a packing that can")

    def with_numbers(self, numbers: Mapping[str, torch.Tensor]) -> Self:
        """Return the packing with numbers of its own, read from small tensors of the file."""
        return self


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A quantised tensor of a file: its packing, and the tensors of the file with codes and scales.

    `scales` are those that the layer gets as buffers, `numbers` those that become part of the packing, both by the name
    that the packing has for them. `stored` is the type that codes are kept in, None that of the file.
    """

    packing: Packing
    codes: str
    scales: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    stored: torch.dtype | None = None

    def parts(self) -> Iterator[str]:
        """Yield the names of all tensors of the file that belong to it."""
        yield self.codes
        yield from self.scales.values()
        yield from self.numbers.values()

    def packing_in(self, file: WeightFile) -> Packing:
        """Return the packing with its numbers read."""
        numbers = {name: file.tensor(part) for name, part in self.numbers.items()}
        return self.packing.with_numbers(numbers) if numbers else self.packing


def row_parts(values: torch.Tensor) -> Iterator[slice]:
    """Yield the rows (first dimension) in parts that are unpacked together."""
    step = max(1, VALUES_AT_ONCE // max(1, values.numel() // max(1, len(values))))
    for start in range(0, len(values), step):
        yield slice(start, start + step)
