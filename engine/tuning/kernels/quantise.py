"""Rows quantised to float8 or int8 in one pass, and what remains to do with an integer product, in Triton.

The plain forms are in `engine/tuning/products/rows.py`. `M` rows of `K` numbers; all arithmetic is in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MOST_COLUMNS = 4096  # that a program has in registers: longer rows are read in parts, a second time from the cache
ROUNDER = 12582912.0  # 1.5 * 2^23: a float32 number plus this one, minus it, is rounded to the nearest even integer


@triton.jit  # type: ignore[untyped-decorator]
def _quantise(  # type: ignore[no-untyped-def]
    x, codes, scales, width, stride,
    LARGEST: tl.constexpr, LEAST: tl.constexpr, ROUNDER: tl.constexpr, IS_INTEGER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    highest = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        inside = start + columns < width
        numbers = tl.load(x + row * stride + start + columns, mask=inside, other=0.0).to(tl.float32)
        highest = tl.maximum(highest, tl.abs(numbers))
    scale = tl.maximum(tl.max(highest, 0) / LARGEST, LEAST)
    tl.store(scales + row, scale)
    for start in range(0, width, BLOCK):
        inside = start + columns < width
        numbers = tl.load(x + row * stride + start + columns, mask=inside, other=0.0).to(tl.float32)
        found = tl.minimum(tl.maximum(numbers / scale, -LARGEST), LARGEST)
        if IS_INTEGER:
            found = (found + ROUNDER) - ROUNDER
        tl.store(codes + row * width + start + columns, found.to(codes.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _scale(  # type: ignore[no-untyped-def]
    product, row_scales, column_scales, bias, out, width, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    numbers = tl.load(product + row * width + column, mask=inside, other=0).to(tl.float32)
    numbers = numbers * tl.load(row_scales + row)
    numbers = numbers * tl.load(column_scales + column, mask=inside, other=0.0)
    if HAS_BIAS:
        numbers += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, numbers.to(out.dtype.element_ty), mask=inside)


def quantise_rows(
    x: torch.Tensor, dtype: torch.dtype, largest: float, least_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes [M, K] of rows `x` [M, K], float8 or int8, and their scales [M, 1], float32.

    `largest` is the largest code, `least_scale` the scale of rows of zeros.
    """
    rows = x if x.stride(-1) == 1 else x.contiguous()
    num_rows, width = rows.shape
    codes = torch.empty(num_rows, width, dtype=dtype, device=x.device)
    scales = torch.empty(num_rows, 1, dtype=torch.float32, device=x.device)
    if num_rows and width:
        _quantise[(num_rows,)](
            rows, codes, scales, width, rows.stride(0), LARGEST=largest, LEAST=least_scale, ROUNDER=ROUNDER,
            IS_INTEGER=dtype == torch.int8, BLOCK=min(MOST_COLUMNS, triton.next_power_of_2(width)),
        )  # fmt: skip
    return codes, scales


def scale_integers(
    product: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return a contiguous int32 product [M, N] times the scales of rows [M, 1] and columns [N], plus bias [N].

    `dtype` is the type of the result.
    """
    num_rows, width = product.shape
    out = torch.empty(num_rows, width, dtype=dtype, device=product.device)
    if num_rows and width:
        block = min(1024, triton.next_power_of_2(width))
        _scale[(num_rows, -(-width // block))](
            product, row_scales, column_scales, column_scales if bias is None else bias, out, width,
            HAS_BIAS=bias is not None, BLOCK=block,
        )  # fmt: skip
    return out
