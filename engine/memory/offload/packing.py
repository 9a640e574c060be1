"""Packed weights: a layer's weight stored as codes of fewer bits than numbers of a torch type have.

A layer has an attribute `PACKINGS` with a `Packing` for each packed weight. The codes are loaded, offloaded and
streamed like any other weight; they become values just before the layer computes, in a cast buffer, and only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn

PACKINGS = "packings"  # attribute of a layer: name of its weight -> `Packing`


class Packing(Protocol):
    """Form of one packed weight.

    `shape` is that of its values. `scales` are the names of the layer's buffers that belong to it. With `is_by_rows`
    any rows of the codes can be unpacked by themselves, without scales. Unpacking takes `working_bytes` besides codes
    and values. With `can_pack` patched values are packed again; else they are patched anew in each call of the layer.
    """

    @property
    def shape(self) -> torch.Size: ...

    @property
    def scales(self) -> tuple[str, ...]: ...

    @property
    def is_by_rows(self) -> bool: ...

    @property
    def can_pack(self) -> bool: ...

    @property
    def working_bytes(self) -> int: ...

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        """Write the values of `codes` to `values`, in the type and on the device of that."""
        ...

    def before_rounding(self, values: torch.Tensor) -> torch.Tensor:
        """Return the numbers, float32, to round to the codes' type (float8) for patched `values`; if `can_pack`."""
        ...


def packings_of(layer: nn.Module) -> Mapping[str, Packing]:
    """Return the packings of a layer's own weights by name."""
    found: Mapping[str, Packing] = layer.__dict__.get(PACKINGS, {})
    return found


def needs_casting(module: nn.Module) -> bool:
    """Return True where a module has packed or float8 weights, which no layer computes with as they are."""
    is_packed = any(PACKINGS in layer.__dict__ for layer in module.modules())
    return is_packed or any(weight.is_floating_point() and weight.itemsize == 1 for weight in module.parameters())


def unpacked(
    packing: Packing,
    codes: torch.Tensor,
    scales: Mapping[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return the values of codes in memory of their own, on the codes' device."""
    values = torch.empty(packing.shape, dtype=dtype, device=codes.device)
    packing.unpack(codes, scales, values)
    return values
