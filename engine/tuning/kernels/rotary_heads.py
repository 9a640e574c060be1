"""Norm and rotary embedding of queries or keys in one pass, in Triton.

Rotation by position: Su et al. 2021, arXiv 2104.09864. Each program reads some heads of one token, computes in float32
and rounds where the plain path stores a tensor. `B` batch, `T` tokens, `H` heads, `W` channels of a head, `P` pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from darkroom.engine.tuning.kernels.residual_norm import NormForm, warps_for
from darkroom.engine.tuning.kernels.rounding import rounded

MAX_NUMBERS = 16384  # that one program holds
TILE_NUMBERS = 1024  # of a program, where heads are normalised by themselves

NO_TURN, MATRICES, PAIRS, CHANNELS, HALVES = 0, 1, 2, 3, 4


@triton.jit  # type: ignore[untyped-decorator]
def _pairs(  # type: ignore[no-untyped-def]
    base, at_first, at_second, both, valid, in_both, HEADS: tl.constexpr, P: tl.constexpr, IS_HALVES: tl.constexpr
):
    """Load the first and the second channels of pairs [HEADS, P] from behind `base` [HEADS, 1]."""
    if IS_HALVES:
        first = tl.load(base + at_first, mask=valid, other=0.0)
        second = tl.load(base + at_second, mask=valid, other=0.0)
    else:
        first, second = tl.split(tl.reshape(tl.load(base + both, mask=in_both, other=0.0), (HEADS, P, 2)))
    return first, second


@triton.jit  # type: ignore[untyped-decorator]
def _factors(weight, ONE_PLUS: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a norm's factors: the weight in the type of the tokens, or one plus it in float32."""
    factors = weight.to(tl.float32) + 1.0 if ONE_PLUS else weight.to(dtype).to(tl.float32)
    return factors


@triton.jit  # type: ignore[untyped-decorator]
def _over_heads(sums, IS_WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return sums of heads [HEADS] as [HEADS, 1], each by itself, or the sum of all."""
    if IS_WHOLE:
        sums = tl.zeros_like(sums) + tl.sum(sums, axis=0)
    return sums[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _rotary_heads(  # type: ignore[no-untyped-def]
    x, weight, bias, out, x_second, weight_second, bias_second, out_second, tables, sines, num_tokens, num_heads, eps,
    x_batch, x_token, x_head, out_batch, out_token, out_head, table_batch, table_token, table_head,
    NORM: tl.constexpr, ONE_PLUS: tl.constexpr, IS_WHOLE: tl.constexpr, LAYOUT: tl.constexpr, ROUNDS: tl.constexpr,
    WIDTH: tl.constexpr, NUM_PAIRS: tl.constexpr,
    HEADS: tl.constexpr, TABLE_HEADS: tl.constexpr, P: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    if tl.program_id(2) == 1:  # queries and keys are two layers of one grid
        x, out = x_second, out_second
        if weight is not None:
            weight = weight_second
        if bias is not None:
            bias = bias_second
    row = tl.program_id(0)
    item, token = (row // num_tokens).to(tl.int64), (row % num_tokens).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dtype: tl.constexpr = x.dtype.element_ty
    IS_HALVES: tl.constexpr = LAYOUT == 4
    HAS_REST: tl.constexpr = WIDTH > 2 * NUM_PAIRS
    pair, both = tl.arange(0, P)[None, :], tl.arange(0, 2 * P)[None, :]
    left = tl.arange(0, REST)[None, :] + 2 * NUM_PAIRS  # channels that do not turn
    is_head = (head < num_heads)[:, None]
    valid, in_both, valid_left = (
        is_head & (pair < NUM_PAIRS),
        is_head & (both < 2 * NUM_PAIRS),
        is_head & (left < WIDTH),
    )
    source = x + item * x_batch + token * x_token + (head.to(tl.int64) * x_head)[:, None]
    first, second = _pairs(source, pair, NUM_PAIRS + pair, both, valid, in_both, HEADS, P, IS_HALVES)
    first, second = first.to(tl.float32), second.to(tl.float32)
    rest = tl.zeros((HEADS, REST), tl.float32)
    if HAS_REST:
        rest = tl.load(source + left, mask=valid_left, other=0.0).to(tl.float32)
    if NORM != 0:
        count = WIDTH * num_heads if IS_WHOLE else WIDTH
        channel = head[:, None] * (WIDTH if IS_WHOLE else 0)
        if NORM == 1:
            sums = tl.sum(first, axis=1) + tl.sum(second, axis=1) + tl.sum(rest, axis=1)
            mean = _over_heads(sums, IS_WHOLE) / count
            first = tl.where(valid, first - mean, 0.0)
            second = tl.where(valid, second - mean, 0.0)
            rest = tl.where(valid_left, rest - mean, 0.0)
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1) + tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(_over_heads(squares, IS_WHOLE) / count + eps)
        first, second, rest = first * scale, second * scale, rest * scale
        if weight is not None:
            base = weight + channel
            w_first, w_second = _pairs(base, pair, NUM_PAIRS + pair, both, valid, in_both, HEADS, P, IS_HALVES)
            first *= _factors(w_first, ONE_PLUS, dtype)
            second *= _factors(w_second, ONE_PLUS, dtype)
            if HAS_REST:
                rest *= _factors(tl.load(base + left, mask=valid_left, other=0.0), ONE_PLUS, dtype)
        if bias is not None:
            base = bias + channel
            b_first, b_second = _pairs(base, pair, NUM_PAIRS + pair, both, valid, in_both, HEADS, P, IS_HALVES)
            first += _factors(b_first, False, dtype)
            second += _factors(b_second, False, dtype)
            if HAS_REST:
                rest += _factors(tl.load(base + left, mask=valid_left, other=0.0), False, dtype)
        first, second, rest = rounded(first, dtype), rounded(second, dtype), rounded(rest, dtype)
    if LAYOUT != 0:
        # [HEADS, 1] where heads have tables of their own, [1, 1] where one table serves all.
        of_head = (tl.program_id(1) * HEADS + tl.arange(0, TABLE_HEADS))[:, None]
        is_own = of_head < num_heads
        turn = item * table_batch + token * table_token + of_head.to(tl.int64) * table_head
        if LAYOUT == 1:
            four = tl.arange(0, 4 * P)[None, :]
            matrices = tl.load(tables + turn + four, mask=is_own & (four < 4 * NUM_PAIRS), other=0.0).to(tl.float32)
            by_first, by_second = tl.split(tl.reshape(matrices, (TABLE_HEADS, P, 2, 2)))
            a, c = tl.split(by_first)
            b, d = tl.split(by_second)
        elif LAYOUT == 3:
            has = is_own & (both < 2 * NUM_PAIRS)
            cos = tl.load(tables + turn + both, mask=has, other=0.0).to(tl.float32)
            sin = tl.load(sines + turn + both, mask=has, other=0.0).to(tl.float32)
            a, d = tl.split(tl.reshape(cos, (TABLE_HEADS, P, 2)))
            b, c = tl.split(tl.reshape(sin, (TABLE_HEADS, P, 2)))
            b = -b
        else:
            has = is_own & (pair < NUM_PAIRS)
            a = tl.load(tables + turn + pair, mask=has, other=0.0).to(tl.float32)
            c = tl.load(sines + turn + pair, mask=has, other=0.0).to(tl.float32)
            b, d = -c, a
        if ROUNDS:
            new_first = rounded(a * first, dtype) + rounded(b * second, dtype)
            second = rounded(c * first, dtype) + rounded(d * second, dtype)
        else:
            new_first = a * first + b * second
            second = c * first + d * second
        first = new_first
    target = out + item * out_batch + token * out_token + (head.to(tl.int64) * out_head)[:, None]
    if IS_HALVES:
        tl.store(target + pair, first.to(dtype), mask=valid)
        tl.store(target + NUM_PAIRS + pair, second.to(dtype), mask=valid)
    else:
        tl.store(target + both, tl.reshape(tl.join(first, second), (HEADS, 2 * P)).to(dtype), mask=in_both)
    if HAS_REST:
        tl.store(target + left, rest.to(dtype), mask=valid_left)


@dataclass(frozen=True, slots=True)
class Turns:
    """Tables of rotations [B, T, H, ...], with 1 where they are shared; `layout` is one of the kernel's numbers.

    `sines` belong to cosines in `tables`. With `rounds` the products are rounded to the type of the heads.
    """

    layout: int
    tables: torch.Tensor
    sines: torch.Tensor | None
    num_pairs: int
    rounds: bool

    def of_tokens(self, tokens: slice) -> Turns:
        """Return the tables of some tokens."""
        if self.tables.shape[1] == 1:
            return self
        sines = None if self.sines is None else self.sines[:, tokens]
        return replace(self, tables=self.tables[:, tokens], sines=sines)


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads `x` [B, T, H, W], their norm, and where the result goes: `out`, of the same shape and type.

    Both have channels innermost. The weights of the norm are [W], or [H * W] for a norm of all heads together.
    """

    x: torch.Tensor
    norm: NormForm
    out: torch.Tensor

    def is_like(self, other: Heads) -> bool:
        """Return True where one launch can compute both: they differ in nothing but their numbers."""
        form, others = self.norm, other.norm
        return (
            self.x.shape == other.x.shape
            and self.x.stride() == other.x.stride()
            and self.out.stride() == other.out.stride()
            and (form.kind, form.eps, form.is_one_plus) == (others.kind, others.eps, others.is_one_plus)
            and _is_alike(form.weight, others.weight)
            and _is_alike(form.bias, others.bias)
        )


def rotary_heads(queries: Heads, keys: Heads, turns: Turns | None, *, is_whole: bool = False) -> None:
    """Write queries and keys, normalised and rotated, to where they go: in one launch where they are alike.

    With `is_whole` the norms are of all heads of a token together.
    """
    if queries.is_like(keys):
        _launch(queries, keys, turns, is_whole=is_whole)
    else:
        _launch(queries, None, turns, is_whole=is_whole)
        _launch(keys, None, turns, is_whole=is_whole)


def _is_alike(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return other is None if one is None else other is not None and one.dtype == other.dtype


def _launch(first: Heads, second: Heads | None, turns: Turns | None, *, is_whole: bool) -> None:
    x, norm, out = first.x, first.norm, first.out
    other = first if second is None else second
    num_batch, num_tokens, num_heads, width = x.shape
    num_pairs = width // 2 if turns is None else turns.num_pairs
    pairs = triton.next_power_of_2(max(1, num_pairs))
    rest = triton.next_power_of_2(max(1, width - 2 * num_pairs))
    numbers = 2 * pairs + (rest if width > 2 * num_pairs else 0)
    most = triton.next_power_of_2(num_heads)
    heads = most if is_whole else min(most, max(1, TILE_NUMBERS // (2 * pairs)))
    tables = None if turns is None else turns.tables
    table_strides = (
        (0, 0, 0)
        if tables is None
        else tuple(
            0 if size == 1 else stride for size, stride in zip(tables.shape[:3], tables.stride()[:3], strict=True)
        )
    )
    has_own = tables is not None and tables.shape[2] > 1
    _rotary_heads[(num_batch * num_tokens, triton.cdiv(num_heads, heads), 1 if second is None else 2)](
        x, norm.weight, norm.bias, out, other.x, other.norm.weight, other.norm.bias, other.out,
        tables, None if turns is None else turns.sines,
        num_tokens, num_heads, norm.eps,
        *x.stride()[:3], *out.stride()[:3], *table_strides,
        NORM=norm.kind, ONE_PLUS=norm.is_one_plus, IS_WHOLE=is_whole,
        LAYOUT=NO_TURN if turns is None else turns.layout, ROUNDS=turns is not None and turns.rounds,
        WIDTH=width, NUM_PAIRS=num_pairs, HEADS=heads, TABLE_HEADS=heads if has_own else 1, P=pairs, REST=rest,
        num_warps=warps_for(heads * numbers), enable_fp_fusion=False,
    )  # fmt: skip
