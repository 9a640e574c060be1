"""Tokens and what modulates them as kernels address them: rows of two dimensions, whatever the strides.

`B` batch, `T` tokens of an item, `D` channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor of `num_batch` times `num_tokens` rows of `width` numbers, which lie next to each other.

    Token `t` of item `b` begins at `b * batch_stride + t // group * token_stride`; tokens share rows where `group` is
    above 1 or a stride is 0.
    """

    tensor: torch.Tensor
    num_batch: int
    num_tokens: int
    width: int
    batch_stride: int
    token_stride: int
    group: int = 1


def rows_of(x: torch.Tensor) -> Rows:
    """Return tokens [..., D] as rows. They are copied only where their channels, or inner dimensions, are scattered."""
    flat = x if x.ndim == 3 else x.reshape(1, -1, x.shape[-1]) if x.ndim < 3 else x.flatten(1, -2)
    if flat.stride(-1) != 1:
        flat = flat.contiguous()
    num_batch, num_tokens, width = flat.shape
    return Rows(flat, num_batch, num_tokens, width, flat.stride(0), flat.stride(1))


def modulator_rows(modulator: torch.Tensor, x: torch.Tensor) -> Rows | None:
    """Return a scale, shift or gate as rows for the tokens `x` [B, ..., D], or None where they have no common rows.

    It broadcasts over items, and over the last of the dimensions between: [B, 1, D], [1, T, D], or [B, F, 1, 1, D] for
    [B, F, h, w, D].
    """
    if modulator.ndim > x.ndim or modulator.shape[-1] != x.shape[-1]:
        return None
    whole = modulator[(None,) * (x.ndim - modulator.ndim)]
    between, of_tokens = whole.shape[1:-1], x.shape[1:-1]
    same = 0
    while same < len(between) and between[same] == of_tokens[same]:
        same += 1
    if whole.shape[0] not in (1, x.shape[0]) or any(size != 1 for size in between[same:]):
        return None
    rows = rows_of(whole if x.ndim >= 3 else whole.reshape(1, -1, whole.shape[-1]))
    num_rows = math.prod(between[:same])
    num_tokens = math.prod(of_tokens)
    return Rows(
        rows.tensor,
        x.shape[0],
        num_tokens,
        rows.width,
        0 if whole.shape[0] == 1 else rows.batch_stride,
        0 if num_rows == 1 else rows.token_stride,
        max(1, num_tokens // max(1, num_rows)),
    )
