"""Gated GELU (Shazeer 2020, arXiv 2002.05202) in one pass, in Triton.

`R` rows of `2 D` numbers, values first, become rows of `D`. GELU is computed in float32 and, as the plain path has it,
rounded to the type of the rows before the product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

COLUMNS = 256  # of a program
ROOT_OF_HALF = 0.7071067811865476


@triton.jit  # type: ignore[untyped-decorator]
def _gate(projected, out, width, ROOT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(projected + row * 2 * width + column, mask=inside, other=0.0)
    gate = tl.load(projected + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    gelu = gate * 0.5 * (1.0 + tl.erf(gate * ROOT))
    result = value.to(tl.float32) * gelu.to(value.dtype).to(tl.float32)
    tl.store(out + row * width + column, result.to(value.dtype), mask=inside)


def geglu(projected: torch.Tensor) -> torch.Tensor:
    """Return values times the GELU of their gates: [..., 2 D] -> [..., D] of the same type."""
    rows = projected.reshape(-1, projected.shape[-1]).contiguous()
    width = rows.shape[1] // 2
    out = rows.new_empty(rows.shape[0], width)
    _gate[(rows.shape[0], -(-width // COLUMNS))](rows, out, width, ROOT=ROOT_OF_HALF, BLOCK=COLUMNS)
    return out.view(*projected.shape[:-1], width)
