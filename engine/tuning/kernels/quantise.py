"""Rows quantised to float8, int8, MXFP8 or NVFP4 in one pass, and what is left of an integer product, in Triton.

The plain forms are in `engine/tuning/products/rows.py` and `block_scaled.py`. `M` rows of `K` numbers; all arithmetic
is in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MOST_COLUMNS = 4096  # that a program has in registers: longer rows are read in parts, a second time from the cache
BLOCKS = 64  # of a program
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


@triton.jit
def _tiled(row, block, across):  # type: ignore[no-untyped-def]
    """Return the offset of a block's scale: in tiles of 128 rows and 4 blocks, rows 32 apart next to each other."""
    return (row // 128 * across + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


@triton.jit  # type: ignore[untyped-decorator]
def _quantise_mxfp8(  # type: ignore[no-untyped-def]
    x, codes, scales, num_blocks, stride, across, LARGEST: tl.constexpr, LEAST: tl.constexpr, BLOCKS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = column < num_blocks * 32
    numbers = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    least = tl.maximum(tl.max(tl.abs(numbers), 1) / LARGEST, LEAST)
    exponent = (least.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23  # of the next power of two, biased
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    found = numbers * inverse[:, None]
    tl.store(codes + row * num_blocks * 32 + column, found.to(codes.dtype.element_ty), mask=inside)
    tl.store(scales + _tiled(row, block, across), exponent.to(tl.uint8), mask=block < num_blocks)


@triton.jit
def _float4(values):  # type: ignore[no-untyped-def]
    """Return the codes of the nearest E2M1 numbers, of two as near the one with an even code."""
    size = tl.abs(values)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code | ((values < 0.0).to(tl.int32) << 3)


@triton.jit  # type: ignore[untyped-decorator]
def _quantise_nvfp4(  # type: ignore[no-untyped-def]
    x, second, codes, scales, num_blocks, stride, across,
    LARGEST: tl.constexpr, LEAST: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    byte = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = byte < num_blocks * 8
    even = tl.load(x + row * stride + 2 * byte, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x + row * stride + 2 * byte + 1, mask=inside, other=0.0).to(tl.float32)
    highest = tl.maximum(tl.max(tl.abs(even), 1), tl.max(tl.abs(odd), 1))
    whole = tl.load(second)
    scale = (highest / (LARGEST * whole)).to(scales.dtype.element_ty)
    factor = tl.maximum(scale.to(tl.float32) * whole, LEAST)[:, None]
    found = (_float4(even / factor) << 4) | _float4(odd / factor)
    tl.store(codes + row * num_blocks * 8 + byte, found.to(tl.uint8), mask=inside)
    tl.store(scales + _tiled(row, block, across), scale, mask=block < num_blocks)


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


def quantise_mxfp8(x: torch.Tensor, largest: float, least_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes [M, K], float8_e4m3fn, of rows `x` [M, K] in blocks of 32, and their exponents in tiles, uint8.

    `largest` is the largest code, `least_scale` the least scale. `K` is a multiple of 32.
    """
    rows = x if x.stride(-1) == 1 else x.contiguous()
    codes = torch.empty(rows.shape, dtype=torch.float8_e4m3fn, device=x.device)
    num_blocks = rows.shape[1] // 32
    scales, across = _tiles(len(rows), num_blocks, x.device)
    if rows.numel():
        _quantise_mxfp8[(len(rows), -(-num_blocks // BLOCKS))](
            rows, codes, scales, num_blocks, rows.stride(0), across, LARGEST=largest, LEAST=least_scale, BLOCKS=BLOCKS
        )
    return codes, scales


def quantise_nvfp4(
    x: torch.Tensor, second: torch.Tensor, largest: float, least_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes [M, K / 2], uint8, of rows `x` [M, K] in blocks of 16, and their scales in tiles, as bytes.

    `second` (float32, no dimension) is the scale of the tensor, `largest` the largest number of four bits. `K` is a
    multiple of 16.
    """
    rows = x if x.stride(-1) == 1 else x.contiguous()
    codes = torch.empty(len(rows), rows.shape[1] // 2, dtype=torch.uint8, device=x.device)
    num_blocks = rows.shape[1] // 16
    scales, across = _tiles(len(rows), num_blocks, x.device)
    if rows.numel():
        _quantise_nvfp4[(len(rows), -(-num_blocks // BLOCKS))](
            rows, second, codes, scales.view(torch.float8_e4m3fn), num_blocks, rows.stride(0), across,
            LARGEST=largest, LEAST=least_scale, BLOCKS=BLOCKS,
        )  # fmt: skip
    return codes, scales


def _tiles(num_rows: int, num_blocks: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return bytes for scales in tiles, of which those of no row or block are zero, and the tiles beside each other."""
    down, across = -(-num_rows // 128), -(-num_blocks // 4)
    return torch.zeros(down * across * 512, dtype=torch.uint8, device=device), across
