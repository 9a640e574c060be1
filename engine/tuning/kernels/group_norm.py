"""Group normalisation with SiLU for channels-last images, in Triton.

Wu and He 2018, arXiv 1803.08494. `N` images of `P` cells and `C` channels, channels innermost; sums are float32.
Sums of a slice of the cells are stored and added up afterwards, so that a result has the same bits each time. They are
of the distances from the group's first number: the squares of numbers far from zero would hide their variance.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CELLS, CHANNELS = 32, 64  # of a program's tile
SLICE_CELLS = 256  # of a program of the sums


@triton.jit  # type: ignore[untyped-decorator]
def _sums(  # type: ignore[no-untyped-def]
    x, total, squares, num_cells, channels, group_width, num_slices,
    SLICE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    item, part = (tl.program_id(0) // num_slices).to(tl.int64), tl.program_id(0) % num_slices
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = column < channels
    origin = x + item * num_cells * channels + column // group_width * group_width
    first = tl.load(origin, mask=inside, other=0.0).to(tl.float32)[None, :]
    sums = tl.zeros((BC,), tl.float32)
    squared = tl.zeros((BC,), tl.float32)
    for start in range(0, SLICE, BP):
        cell = part * SLICE + start + tl.arange(0, BP)
        valid = (cell < num_cells)[:, None] & inside[None, :]
        place = (item * num_cells + cell)[:, None] * channels + column[None, :]
        values = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)
        values = tl.where(valid, values - first, 0.0)
        sums += tl.sum(values, axis=0)
        squared += tl.sum(values * values, axis=0)
    out = (item * num_slices + part) * channels + column
    tl.store(total + out, sums, mask=inside)
    tl.store(squares + out, squared, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _scale(x, factor, offset, out, num_cells, channels, WITH_SILU: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # type: ignore[no-untyped-def]
    num_tiles = tl.cdiv(num_cells, BP)
    item = (tl.program_id(0) // num_tiles).to(tl.int64)
    cell = (tl.program_id(0) % num_tiles) * BP + tl.arange(0, BP)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = column < channels
    valid = (cell < num_cells)[:, None] & inside[None, :]
    place = (item * num_cells + cell)[:, None] * channels + column[None, :]
    values = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)
    a = tl.load(factor + item * channels + column, mask=inside, other=0.0)
    b = tl.load(offset + item * channels + column, mask=inside, other=0.0)
    values = values * a[None, :] + b[None, :]
    if WITH_SILU:
        values = values / (1.0 + tl.exp(-values))
    tl.store(out + place, values.to(out.dtype.element_ty), mask=valid)


def group_norm_silu(
    x: torch.Tensor, num_groups: int, weight: torch.Tensor, bias: torch.Tensor, eps: float, *, with_silu: bool = True
) -> torch.Tensor:
    """Normalise a channels-last `x` [N, C, h, w] by groups, scale it by `weight` and `bias` [C], and apply SiLU.

    Returns the type and layout of `x`.
    """
    items, channels, height, width = x.shape
    num_cells, group_width = height * width, channels // num_groups
    num_slices = -(-num_cells // SLICE_CELLS)
    total = torch.empty((items, num_slices, channels), dtype=torch.float32, device=x.device)
    squares = torch.empty_like(total)
    columns = -(-channels // CHANNELS)
    _sums[(items * num_slices, columns)](
        x, total, squares, num_cells, channels, group_width, num_slices,
        SLICE=SLICE_CELLS, BP=CELLS, BC=CHANNELS,
    )  # fmt: skip
    size = group_width * num_cells
    distance = total.sum(1).view(items, num_groups, -1).sum(-1, keepdim=True) / size  # [N, G, 1]
    variance = squares.sum(1).view(items, num_groups, -1).sum(-1, keepdim=True) / size - distance * distance
    mean = x[:, ::group_width, 0, 0].float().unsqueeze(-1) + distance
    scale = torch.rsqrt(variance.clamp_min(0.0) + eps)
    factor = weight.float().view(1, num_groups, -1) * scale
    offset = bias.float().view(1, num_groups, -1) - mean * factor
    out = torch.empty_like(x)  # keeps the layout
    _scale[(items * -(-num_cells // CELLS), columns)](
        x, factor.contiguous(), offset.contiguous(), out, num_cells, channels,
        WITH_SILU=with_silu, BP=CELLS, BC=CHANNELS,
    )  # fmt: skip
    return out
