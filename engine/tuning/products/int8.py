"""Matrix products of int8 weights with activations that are quantised row by row on the way.

`M` rows of `K` numbers times a weight [N, K] give [M, N]. Sums are exact integers; scales of rows and columns and the
bias are applied to them in one pass. CUDA multiplies such matrices since Turing, CPUs with VNNI or AMX by oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from darkroom.engine.tuning.products.rows import QuantiseRows

MULTIPLE = 8  # of both sides of a weight, for the kernels of CUDA
LEAST_ROWS = 32  # there: 16 are refused

IntMm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(int8 [M, K], int8 [K, N]) -> int32 [M, N]"""
ScaleIntegers = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None", torch.dtype], torch.Tensor]


class Int8Products:
    """Products of int8 matrices."""

    def __init__(
        self,
        quantise: Callable[[torch.device], QuantiseRows],
        scale: Callable[[torch.device], ScaleIntegers],
        int_mm: IntMm = torch._int_mm,
        least_rows: Callable[[torch.device], int] = lambda device: 0 if device.type == "cpu" else LEAST_ROWS,
    ) -> None:
        self._least_rows = least_rows
        self._quantise = quantise
        self._scale = scale
        self._int_mm = int_mm

    def multiply(
        self, x: torch.Tensor, weight: torch.Tensor, column_scales: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return `x` [M, K] times the transposed `weight` [N, K] (int8), plus bias [N], in the type of `x`.

        `column_scales` [N], float32, are those of the weight's rows.
        """
        rows = self._quantise(x.device)(x, torch.int8)
        codes, num_rows = rows.codes, x.shape[0]
        least = self._least_rows(x.device)
        if num_rows < least:
            codes = functional.pad(codes, (0, 0, 0, least - num_rows))
        product = self._int_mm(codes, weight.t())[:num_rows]
        return self._scale(x.device)(product, rows.scales, column_scales, bias, x.dtype)


def multiplies_int8(device: torch.device) -> bool:
    """Return True where a device has int8 products that are faster than those of its other types can be expected."""
    if device.type != "cpu":
        return device.type in ("cuda", "meta")
    return any(getattr(torch.cpu, name, bool)() for name in ("_is_vnni_supported", "_is_amx_tile_supported"))
