"""Gated residual, norm, scale and shift of tokens in one pass, in Triton.

Adaptive layer norm: Peebles and Xie 2022, arXiv 2212.09748. Each program reads one token. It computes in float32 and
rounds to the type of the tokens where the plain path stores a tensor, so that results differ from it by single
roundings. `B` batch, `T` tokens, `D` channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from darkroom.engine.tuning.kernels.rounding import finite_half, rounded
from darkroom.engine.tuning.kernels.rows import Rows, rows_of

MAX_WIDTH = 16384  # channels that one program holds

NO_NORM, LAYER_NORM, RMS_NORM = 0, 1, 2


@triton.jit  # type: ignore[untyped-decorator]
def normalised(values, inside, width, eps, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Normalise a token of `width` channels without weights; `values` are 0 outside of them."""
    if KIND == 1:
        values = tl.where(inside, values - tl.sum(values, axis=0) / width, 0.0)
    if KIND != 0:
        values = values * tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    return values


@triton.jit  # type: ignore[untyped-decorator]
def weighted(values, weight, bias, column, inside, ONE_PLUS: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply by a norm's weight, add its bias, and round, as one step of the plain path."""
    if weight is not None:
        factor = tl.load(weight + column, mask=inside, other=0.0)
        factor = factor.to(tl.float32) + 1.0 if ONE_PLUS else factor.to(dtype).to(tl.float32)
        values = values * factor
    if bias is not None:
        values += tl.load(bias + column, mask=inside, other=0.0).to(dtype).to(tl.float32)
    return rounded(values, dtype)


@triton.jit
def modulator_of(rows, item, token, batch_stride, token_stride, group, column, inside):  # type: ignore[no-untyped-def]
    """Load the row of a scale, shift or gate that belongs to a token."""
    at = item * batch_stride + (token // group).to(tl.int64) * token_stride
    return tl.load(rows + at + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _residual_norm(  # type: ignore[no-untyped-def]
    x, change, gate, scale, shift, weight, bias, change_weight, change_bias, total, normed,
    num_tokens, width, eps, change_eps,
    x_batch, x_token, change_batch, change_token, out_batch, out_token,
    gate_batch, gate_token, gate_group, scale_batch, scale_token, scale_group, shift_batch, shift_token, shift_group,
    NORM: tl.constexpr, ONE_PLUS: tl.constexpr, IS_JOINED: tl.constexpr,
    CHANGE_NORM: tl.constexpr, CHANGE_ONE_PLUS: tl.constexpr, IS_JOINED_GATE: tl.constexpr,
    CLAMPS_CHANGE: tl.constexpr, CLAMPS_SUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    item, token = (row // num_tokens).to(tl.int64), row % num_tokens
    column = tl.arange(0, BLOCK)
    inside = column < width
    dtype: tl.constexpr = x.dtype.element_ty
    far = token.to(tl.int64)
    values = tl.load(x + item * x_batch + far * x_token + column, mask=inside, other=0.0).to(tl.float32)
    if change is not None:
        added = tl.load(change + item * change_batch + far * change_token + column, mask=inside, other=0.0)
        added = added.to(tl.float32)
        if CLAMPS_CHANGE and dtype == tl.float16:
            added = finite_half(added)
        if CHANGE_NORM != 0:
            added = normalised(added, inside, width, change_eps, CHANGE_NORM)
            added = weighted(added, change_weight, change_bias, column, inside, CHANGE_ONE_PLUS, dtype)
        if gate is not None:
            added = added * modulator_of(gate, item, token, gate_batch, gate_token, gate_group, column, inside)
            if not IS_JOINED_GATE:
                added = rounded(added, dtype)
        values += added
        if CLAMPS_SUM and dtype == tl.float16:
            values = finite_half(values)
        values = rounded(values, dtype)
        if total is not None:
            tl.store(total + item * out_batch + far * out_token + column, values.to(dtype), mask=inside)
    if normed is not None:
        if NORM != 0:
            values = normalised(values, inside, width, eps, NORM)
            values = weighted(values, weight, bias, column, inside, ONE_PLUS, dtype)
        if scale is not None:
            factor = modulator_of(scale, item, token, scale_batch, scale_token, scale_group, column, inside)
            values = values * rounded(1.0 + factor, dtype)
            if not IS_JOINED:
                values = rounded(values, dtype)
        if shift is not None:
            values += modulator_of(shift, item, token, shift_batch, shift_token, shift_group, column, inside)
        tl.store(normed + item * out_batch + far * out_token + column, values.to(dtype), mask=inside)


@dataclass(frozen=True, slots=True)
class NormForm:
    """A norm: its kind, and weight and bias [D] of any type. With `is_one_plus` factors are one plus the weight."""

    kind: int = NO_NORM
    eps: float = 1e-6
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_one_plus: bool = False


@dataclass(frozen=True, slots=True)
class Residual:
    """A change of the tokens, [..., D] as they are, its norm and its gate."""

    change: torch.Tensor
    norm: NormForm = NormForm()
    gate: Rows | None = None
    is_joined: bool = False
    clamps_change: bool = False
    clamps_sum: bool = False


@dataclass(frozen=True, slots=True)
class Modulation:
    """A norm of the tokens, and the scale and shift behind it."""

    norm: NormForm = NormForm()
    scale: Rows | None = None
    shift: Rows | None = None
    is_joined: bool = False


def residual_norm(
    x: torch.Tensor,
    residual: Residual | None,
    modulation: Modulation | None,
    total: torch.Tensor | None,
    normed: torch.Tensor | None,
) -> None:
    """Write the sum of tokens and their change to `total`, and its norm to `normed`.

    All tokens are [..., D] of one type; `total` and `normed` have the same strides, with channels innermost. Without a
    `residual` the norm is that of `x`.
    """
    rows = rows_of(x)
    change = None if residual is None else rows_of(residual.change)
    outs = [item for item in (total, normed) if item is not None]
    out = rows_of(outs[0])
    gate = None if residual is None else residual.gate
    scale, shift = (None, None) if modulation is None else (modulation.scale, modulation.shift)
    norm = NormForm() if modulation is None else modulation.norm
    change_norm = NormForm() if residual is None else residual.norm
    block = triton.next_power_of_2(rows.width)
    _residual_norm[(rows.num_batch * rows.num_tokens,)](
        rows.tensor, _tensor(change), _tensor(gate), _tensor(scale), _tensor(shift),
        norm.weight, norm.bias, change_norm.weight, change_norm.bias, total, normed,
        rows.num_tokens, rows.width, norm.eps, change_norm.eps,
        rows.batch_stride, rows.token_stride, *_strides(change)[:2], out.batch_stride, out.token_stride,
        *_strides(gate), *_strides(scale), *_strides(shift),
        NORM=norm.kind, ONE_PLUS=norm.is_one_plus, IS_JOINED=modulation is not None and modulation.is_joined,
        CHANGE_NORM=change_norm.kind, CHANGE_ONE_PLUS=change_norm.is_one_plus,
        IS_JOINED_GATE=residual is not None and residual.is_joined,
        CLAMPS_CHANGE=residual is not None and residual.clamps_change,
        CLAMPS_SUM=residual is not None and residual.clamps_sum,
        BLOCK=block, num_warps=warps_for(block), enable_fp_fusion=False,
    )  # fmt: skip


def warps_for(width: int) -> int:
    """Return the number of warps that share a row of `width` numbers: 16 a thread, from one warp to sixteen."""
    return min(16, max(1, width // 512))


def _tensor(rows: Rows | None) -> torch.Tensor | None:
    return None if rows is None else rows.tensor


def _strides(rows: Rows | None) -> tuple[int, int, int]:
    return (0, 0, 1) if rows is None else (rows.batch_stride, rows.token_stride, rows.group)
