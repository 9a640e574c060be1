"""ComfyUI's scaled float8: a tensor `scaled_fp8` marks the file, linear layers have a `scale_weight` beside `weight`.

A weight is its float8 number times the scale. The type of the marker is that of the scaled weights (float32 stands for
float8_e4m3fn); biases and weights without a scale keep the file's own, as in ComfyUI since 2026. `scale_input` is for
multiplying float8 matrices, which is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from darkroom.engine.formats.quantised.packing import PackedTensor, Packing
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.weight_file import WeightFile

MARK = "scaled_fp8"
SCALE, INPUT_SCALE = "scale_weight", "scale_input"


@dataclass(frozen=True)
class ScaledFloat8Packing(Packing):
    """float8 numbers with one scale for all."""

    scale: float = 1.0

    @property
    def working_bytes(self) -> int:
        return 0

    @property
    def can_pack(self) -> bool:
        return True

    def with_numbers(self, numbers: Mapping[str, torch.Tensor]) -> Self:
        return replace(self, scale=float(numbers[SCALE].reshape(-1)[0]))

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        values.copy_(codes.view(values.shape)).mul_(torch.tensor(self.scale).to(values.dtype).item())

    def before_rounding(self, values: torch.Tensor) -> torch.Tensor:
        return values / self.scale


def scaled_float8(file: WeightFile) -> QuantisedFile | None:
    """Return a file with the weights of scaled layers as its tensors; None without a mark."""
    marks = {name: name.removesuffix(MARK) for name in file.tensors if name == MARK or name.endswith(f".{MARK}")}
    if not marks:
        return None
    types = {prefix: _stored(file.tensors[name].dtype) for name, prefix in marks.items()}
    packed: dict[str, PackedTensor] = {}
    hidden = set(marks)
    for name in file.tensors:
        layer, _, kind = name.rpartition(".")
        dtype = next((dtype for prefix, dtype in types.items() if name.startswith(prefix)), None)
        if dtype is None or kind not in (SCALE, INPUT_SCALE):
            continue
        hidden.add(name)
        weight = f"{layer}.weight"
        if kind == SCALE and weight in file.tensors:
            packing = ScaledFloat8Packing(torch.Size(file.tensors[weight].shape))
            packed[weight] = PackedTensor(packing, weight, numbers={SCALE: name}, stored=dtype)
    return QuantisedFile(file, packed, hidden=frozenset(hidden))


def _stored(marked: torch.dtype) -> torch.dtype:
    return torch.float8_e4m3fn if marked == torch.float32 else marked
