"""Gated activations of tokens in one pass, in Triton (Shazeer 2020, arXiv 2002.05202).

The activation is computed in float32 and, as the plain path has it, rounded to the type of the tokens before the
product with the value.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from darkroom.engine.tuning.kernels.rounding import finite_half, rounded
from darkroom.engine.tuning.kernels.rows import rows_of

COLUMNS: Final = 1024  # of a program
ROOT_OF_HALF: Final = 0.7071067811865476
TWO_ROOTS: Final = 1.5957691216057308  # 2 * sqrt(2 / pi), of the approximation with a hyperbolic tangent
KINDS: Final = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "sigmoid": 3}


@triton.jit  # type: ignore[untyped-decorator]
def activated(x, KIND: tl.constexpr, ROOT: tl.constexpr, ROOTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return SiLU, GELU, GELU by a hyperbolic tangent, or the sigmoid of float32 numbers."""
    if KIND == 0:
        x = x / (1.0 + tl.exp(-x))
    elif KIND == 1:
        x = x * 0.5 * (1.0 + tl.erf(x * ROOT))
    elif KIND == 2:
        x = x / (1.0 + tl.exp(-ROOTS * (x + 0.044715 * x * x * x)))
    else:
        x = 1.0 / (1.0 + tl.exp(-x))
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _activate(  # type: ignore[no-untyped-def]
    gate, value, copied, out, num_tokens, width, copied_width,
    gate_batch, gate_token, value_batch, value_token, copied_batch, copied_token, out_row,
    KIND: tl.constexpr, CLAMPS: tl.constexpr, ROOT: tl.constexpr, ROOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    item, token = (row // num_tokens).to(tl.int64), (row % num_tokens).to(tl.int64)
    num_copies = tl.cdiv(copied_width, BLOCK)
    part = tl.program_id(1)
    target = out + row.to(tl.int64) * out_row
    dtype: tl.constexpr = gate.dtype.element_ty
    if part < num_copies:
        if copied is not None:
            column = part * BLOCK + tl.arange(0, BLOCK)
            inside = column < copied_width
            source = copied + item * copied_batch + token * copied_token
            tl.store(target + column, tl.load(source + column, mask=inside), mask=inside)
    else:
        column = (part - num_copies) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        result = tl.load(gate + item * gate_batch + token * gate_token + column, mask=inside, other=0.0)
        result = activated(result.to(tl.float32), KIND, ROOT, ROOTS)
        if value is not None:
            factor = tl.load(value + item * value_batch + token * value_token + column, mask=inside, other=0.0)
            result = rounded(result, dtype) * factor.to(tl.float32)
            if CLAMPS and dtype == tl.float16:
                result = finite_half(result)
        tl.store(target + copied_width + column, result.to(dtype), mask=inside)


def activate(
    gate: torch.Tensor,
    value: torch.Tensor | None,
    kind: str,
    *,
    copied: torch.Tensor | None = None,
    clamps_product: bool = False,
) -> torch.Tensor:
    """Return activated gates [..., N], times values of the same shape and type where there are any.

    `copied` [..., D] stands before the result, [..., D + N]. `kind` is one of `KINDS`. With `clamps_product` float16
    overflows become the largest number, and NaN 0.
    """
    gates, values, copies = (None if item is None else rows_of(item) for item in (gate, value, copied))
    assert gates is not None
    copied_width = 0 if copies is None else copies.width
    out = gate.new_empty((*gate.shape[:-1], copied_width + gates.width))
    grid = (gates.num_batch * gates.num_tokens, triton.cdiv(copied_width, COLUMNS) + triton.cdiv(gates.width, COLUMNS))
    value_strides, copied_strides = (
        (0, 0) if item is None else (item.batch_stride, item.token_stride) for item in (values, copies)
    )
    _activate[grid](
        gates.tensor, None if values is None else values.tensor, None if copies is None else copies.tensor, out,
        gates.num_tokens, gates.width, copied_width,
        gates.batch_stride, gates.token_stride, *value_strides, *copied_strides, copied_width + gates.width,
        KIND=KINDS[kind], CLAMPS=clamps_product, ROOT=ROOT_OF_HALF, ROOTS=TWO_ROOTS, BLOCK=COLUMNS,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out
