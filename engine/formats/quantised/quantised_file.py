"""A file of weights some of which are quantised, with the names and shapes of the values.

`fill` leaves codes and scales in the layers (`packed_layers`), which unpack them as they compute; whatever else reads a
tensor gets its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from darkroom.engine.formats.mapped_file import TensorPlace
from darkroom.engine.formats.quantised.packing import PackedTensor
from darkroom.engine.formats.weight_file import WeightFile


class QuantisedFile:
    """A file with the tensors `packed` (name of the values -> how they are stored).

    Codes and scales have no names of their own here, neither have the tensors `hidden`. `label` describes the file in
    errors.
    """

    def __init__(
        self,
        file: WeightFile,
        packed: Mapping[str, PackedTensor],
        *,
        hidden: frozenset[str] = frozenset(),
        label: str = "",
    ) -> None:
        self.file = file
        self.label = label
        self.path = file.path
        self.metadata = file.metadata
        self.packed = dict(packed)
        parts = {part for item in packed.values() for part in item.parts()}
        self.tensors: dict[str, TensorPlace] = {
            name: place for name, place in file.tensors.items() if name not in parts and name not in hidden
        }
        for name, item in packed.items():
            place = file.tensors[item.codes]
            self.tensors[name] = replace(place, shape=tuple(item.packing.shape))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self.tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of the file, or the values (float32) of a quantised one."""
        item = self.packed.get(name)
        if item is None:
            return self.file.tensor(name)
        packing = item.packing_in(self.file)
        values = torch.empty(packing.shape, dtype=torch.float32)
        codes = self.file.tensor(item.codes)
        scales = {buffer: self.file.tensor(part) for buffer, part in item.scales.items()}
        packing.unpack(codes if item.stored is None else codes.to(item.stored), scales, values)
        return values
