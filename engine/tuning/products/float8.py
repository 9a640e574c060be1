"""Matrix products of float8 weights with activations that are quantised row by row on the way.

`M` rows of `K` numbers times a weight [N, K] give [M, N]. Which forms of `torch._scaled_mm` a device has depends on the
card, the version of torch and the types, in ways that change from one version to the next. So each form is tried once,
on a tiny product whose result is known, and the first right one is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.tuning.products.rows import LARGEST, QuantiseRows

MULTIPLE = 16  # of both sides of a weight, for the kernels of CUDA
ACTIVATIONS = torch.float8_e4m3fn
PROBE_ROWS, PROBE_SIDE = 32, 64
PROBE_ERROR = 0.1  # relative; of a right product of numbers with three bits of mantissa a third of it

log = logging.getLogger(__name__)

ScaledMm = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Float8Way:
    """One form of the product: scales of rows and columns or of whole tensors, and the type of the result.

    `adds_bias`: the bias is added in it. `is_fast`: sums have fewer bits on Ada and Hopper, as is usual for inference.
    """

    by_rows: bool
    out_dtype: torch.dtype
    adds_bias: bool
    is_fast: bool


class Float8Products:
    """Products of float8 matrices by the form that a device has."""

    def __init__(
        self, quantise: Callable[[torch.device], QuantiseRows], scaled_mm: ScaledMm = torch._scaled_mm
    ) -> None:
        self._quantise = quantise
        self._scaled_mm = scaled_mm
        self._ways: dict[Hashable, Float8Way | None] = {}
        self._scales: dict[Hashable, torch.Tensor] = {}

    def way(self, device: torch.device, weight: torch.dtype, dtype: torch.dtype) -> Float8Way | None:
        """Return the form for weights and activations of these types, or None where there is none."""
        key = (str(device), weight, dtype)
        if key not in self._ways:
            self._ways[key] = found = self._probed(device, weight, dtype)
            log.info("float8 product probed: device=%s weight=%s dtype=%s way=%s", device, weight, dtype, found)
        return self._ways[key]

    def column_scales(self, scale: float, num_columns: int, way: Float8Way, device: torch.device) -> torch.Tensor:
        """Return one scale for all columns as the form wants it; always the same tensor."""
        shape = (1, num_columns) if way.by_rows else ()
        key = (str(device), shape, scale)
        if key not in self._scales:
            self._scales[key] = torch.full(shape, scale, dtype=torch.float32, device=device)
        return self._scales[key]

    def multiply(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        column_scales: torch.Tensor,
        bias: torch.Tensor | None,
        way: Float8Way,
    ) -> torch.Tensor:
        """Return `x` [M, K] times the transposed `weight` [N, K] (float8), plus bias [N], in the type of `x`.

        `column_scales` are those of the weight's rows, [1, N] or of no dimension as the form has it.
        """
        if way.by_rows:
            rows = self._quantise(x.device)(x, ACTIVATIONS)
            codes, row_scales = rows.codes, rows.scales
        else:
            codes, row_scales = quantised_tensor(x)
        own_bias = bias.to(way.out_dtype) if bias is not None and way.adds_bias else None
        out = self._scaled_mm(
            codes, weight.t(), scale_a=row_scales, scale_b=column_scales, bias=own_bias, out_dtype=way.out_dtype,
            use_fast_accum=way.is_fast,
        ).to(x.dtype)  # fmt: skip
        return out if bias is None or own_bias is not None else out.add_(bias)

    def _probed(self, device: torch.device, weight: torch.dtype, dtype: torch.dtype) -> Float8Way | None:
        if device.type == "meta":
            return ways_of(dtype)[0]
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(PROBE_ROWS, PROBE_SIDE, generator=generator).to(device, dtype)
        codes = torch.randn(PROBE_SIDE, PROBE_SIDE, generator=generator).to(weight).to(device)
        bias = torch.randn(PROBE_SIDE, generator=generator).to(device, dtype)
        expected = (x.double() @ codes.double().t()).mul_(0.5).add_(bias.double())
        for way in ways_of(dtype):
            scales = torch.full((1, PROBE_SIDE) if way.by_rows else (), 0.5, device=device)
            try:
                found = self.multiply(x, codes, scales, bias, way).double()
            except Exception as error:  # noqa: BLE001 - torch's and Triton's compilers have many for what a card lacks
                log.debug("float8 product not used: way=%s reason=%s: %s", way, type(error).__name__, error)
                continue
            if float((found - expected).norm()) <= PROBE_ERROR * float(expected.norm()):
                return way
        return None


def ways_of(dtype: torch.dtype) -> Sequence[Float8Way]:
    """Return the forms for activations of a type, the best first."""
    out_dtypes = dict.fromkeys((dtype, torch.bfloat16, torch.float32))
    return [
        Float8Way(by_rows, out, adds_bias, is_fast=True)
        for by_rows in (True, False)
        for out in out_dtypes
        for adds_bias in (True, False)
    ]


def quantised_tensor(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x` in float8_e4m3fn and the factor (float32, no dimension) by which it is to be multiplied."""
    largest = LARGEST[ACTIVATIONS]
    scale = (x.abs().amax().float() / largest).clamp_min(1e-12)
    return (x.float() / scale).clamp(-largest, largest).to(ACTIVATIONS), scale
