"""Convolutions of 3x3 with fewer products: 4 or 2.25 for each cell of the result, where a plain one takes 9.

A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308: F(2x2, 3x3), F(4x4, 3x3).
The transforms of the smaller tile are additions and halvings alone, so that float32 results are at least as close to
exact ones as a plain convolution's; those of the larger one multiply by up to 8: its results are three times as far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

LEAST_BAND_BYTES = 16 * 1024**2  # of transformed cells at a time: about what a processor's cache holds
Slots = Sequence[Tensor | None]  # where results are written; None is a new tensor


@dataclass(frozen=True, slots=True)
class Tile:
    """The cells of a result that are made together, `side` x `side`, from `width` x `width` cells of the image.

    `weight_rows` [width, 3] transforms a side of the kernel, `spread` one of the image, `gather` one of the products,
    to which it adds the bias where there is one.
    """

    side: int
    weight_rows: tuple[tuple[float, float, float], ...]
    spread: Callable[[Sequence[Tensor], Slots], tuple[Tensor, ...]]
    gather: Callable[[Sequence[Tensor], Slots, Tensor | None], tuple[Tensor, ...]]

    @property
    def width(self) -> int:
        return self.side + 2

    @property
    def num_products(self) -> int:
        return self.width**2

    def count(self, x: Tensor) -> int:
        """Return the number of tiles of the result for an image `x` [B, C, H, W]."""
        return x.shape[0] * -(-x.shape[2] // self.side) * -(-x.shape[3] // self.side)


def _spread_two(cells: Sequence[Tensor], out: Slots) -> tuple[Tensor, ...]:
    a, b, c, d = cells
    return (
        torch.sub(a, c, out=out[0]),
        torch.add(b, c, out=out[1]),
        torch.sub(c, b, out=out[2]),
        torch.sub(b, d, out=out[3]),
    )


def _gather_two(products: Sequence[Tensor], out: Slots, bias: Tensor | None) -> tuple[Tensor, ...]:
    a, b, c, d = products
    total, difference = _biased(b + c, b - c, bias)
    return torch.add(total, a, out=out[0]), torch.sub(difference, d, out=out[1])


def _spread_four(cells: Sequence[Tensor], out: Slots) -> tuple[Tensor, ...]:
    a, b, c, d, e, f = cells
    even, odd = torch.sub(e, c, alpha=4), torch.sub(d, b, alpha=4)
    even_half, odd_half = e - c, (d - b).mul_(2)
    return (
        torch.add(e, a, alpha=4, out=out[0]).sub_(c, alpha=5),
        torch.add(even, odd, out=out[1]),
        torch.sub(even, odd, out=out[2]),
        torch.add(even_half, odd_half, out=out[3]),
        torch.sub(even_half, odd_half, out=out[4]),
        torch.add(f, b, alpha=4, out=out[5]).sub_(d, alpha=5),
    )


def _gather_four(products: Sequence[Tensor], out: Slots, bias: Tensor | None) -> tuple[Tensor, ...]:
    a, b, c, d, e, f = products
    total, difference = _biased(b + c, b - c, bias)
    far_total, far_difference = d + e, d - e
    return (
        torch.add(total, far_total, out=out[0]).add_(a),
        torch.add(difference, far_difference, alpha=2, out=out[1]),
        torch.add(total, far_total, alpha=4, out=out[2]),
        torch.add(difference, far_difference, alpha=8, out=out[3]).add_(f),
    )


def _biased(total: Tensor, difference: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Add the bias, which is in each cell of the result once: each has one of the two."""
    return (total, difference) if bias is None else (total.add_(bias), difference.add_(bias))


TWO: Final = Tile(2, ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)), _spread_two, _gather_two)
FOUR: Final = Tile(
    4,
    (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
    _spread_four,
    _gather_four,
)
TILES: Final = {tile.num_products: tile for tile in (TWO, FOUR)}


def transform_weight(weight: Tensor, tile: Tile = TWO) -> Tensor:
    """Transform the weight of a convolution: [O, I, 3, 3] -> [products, O, I], of the same type."""
    num_out, num_in = weight.shape[:2]
    rows = torch.tensor(tile.weight_rows, dtype=torch.float64)
    both = torch.kron(rows, rows).to(weight.dtype)  # [products, 9]
    taps = weight.permute(2, 3, 0, 1).reshape(9, num_out * num_in)
    return torch.mm(both, taps).view(tile.num_products, num_out, num_in)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve with a stride of 1 and one cell of zeros around.

    `x` [B, I, H, W], `weight` from `transform_weight`, `bias` [O] -> [B, O, H, W] with channels innermost. The result
    is made in bands of rows, whose buffers are used again and again: new ones cost more than the additions.
    """
    tile = TILES[weight.shape[0]]
    side, width = tile.side, tile.width
    batch, num_in, height, breadth = x.shape
    num_out, high, wide = weight.shape[1], -(-height // side), -(-breadth // side)
    missing = (0, 0, 1, 1 + wide * side - breadth, 1, 1 + high * side - height)
    cells = functional.pad(x.permute(0, 2, 3, 1), missing)  # [B, side * h + 2, side * w + 2, I]
    out = x.new_empty(batch, side * high, side * wide, num_out)
    bytes_a_row = tile.num_products * batch * wide * (num_in + num_out) * x.element_size()
    # Each band reads all weights: few bands where those are large.
    rows_a_band = max(1, min(high, max(LEAST_BAND_BYTES, 2 * weight.nbytes) // bytes_a_row))
    before = x.new_empty(tile.num_products * batch * rows_a_band * wide * num_in)
    after = x.new_empty(tile.num_products * batch * rows_a_band * wide * num_out)
    for top in range(0, high, rows_a_band):
        rows = min(rows_a_band, high - top)
        tiles = batch * rows * wide
        spread = before[: tile.num_products * tiles * num_in].view(-1, tiles, num_in)
        products = after[: tile.num_products * tiles * num_out].view(-1, tiles, num_out)
        band = cells[:, side * top : side * (top + rows) + 2]
        _spread(tile, band, spread.view(width, width, batch, rows, wide, num_in))
        torch.bmm(spread, weight.transpose(1, 2), out=products)
        made = products.view(width, width, batch, rows, wide, num_out)
        _gather(tile, made, bias, out[:, side * top : side * (top + rows)])
    return out[:, :height, :breadth].permute(0, 3, 1, 2)


def _spread(tile: Tile, cells: Tensor, out: Tensor) -> None:
    """Transform overlapping cells [B, side * h + 2, side * w + 2, C] into `out` [width, width, B, h, w, C]."""
    high, wide = (tile.side * size for size in out.shape[3:5])
    new = [None] * tile.width
    rows = tile.spread([cells[:, row : row + high : tile.side] for row in range(tile.width)], new)
    for row, slots in zip(rows, out.unbind(), strict=True):
        tile.spread([row[:, :, place : place + wide : tile.side] for place in range(tile.width)], slots.unbind())


def _gather(tile: Tile, products: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Transform `products` [width, width, B, h, w, O] into the cells of `out` [B, side * h, side * w, O]."""
    rows = tile.gather(products.unbind(), [None] * tile.side, None)  # each [width, B, h, w, O]
    for place, row in enumerate(rows):
        slots = [out[:, place :: tile.side, column :: tile.side] for column in range(tile.side)]
        tile.gather(row.unbind(), slots, bias)
