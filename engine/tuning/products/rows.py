"""Rows of activations quantised each by its own largest magnitude, for matrix products in float8 and int8.

`M` rows of `K` numbers. One scale for each row, not one for all: a token with outliers then costs only itself precision
(LLM.int8(), Dettmers et al. 2022, arXiv 2208.07339; float8: arXiv 2209.05433).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
LEAST_SCALE = 1e-12  # of rows of zeros


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """Codes [M, K] and the factors [M, 1], float32, by which rows are to be multiplied."""

    codes: torch.Tensor
    scales: torch.Tensor


QuantiseRows = Callable[[torch.Tensor, torch.dtype], QuantisedRows]
"""(rows [M, K] of any floating point type, float8 or int8) -> codes and scales."""


def quantise_rows(x: torch.Tensor, dtype: torch.dtype) -> QuantisedRows:
    """Quantise rows by torch's own operations: the plain form of `kernels/quantise.py`."""
    largest = LARGEST[dtype]
    numbers = x.float()
    scales = numbers.abs().amax(-1, keepdim=True).div_(largest).clamp_min_(LEAST_SCALE)
    codes = (numbers / scales).clamp_(-largest, largest)
    return QuantisedRows((codes.round_() if dtype == torch.int8 else codes).to(dtype), scales)


def scale_integers(
    product: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return an int32 product [M, N] times the scales of its rows [M, 1] and columns [N], plus bias [N], as `dtype`.

    The plain form of the kernel in `kernels/quantise.py`.
    """
    out = product.float().mul_(row_scales).mul_(column_scales)
    return (out if bias is None else out.add_(bias)).to(dtype)
