"""Convolutions of 3x3 with 16 products for each 2x2 cells of the result, where a plain one takes 36.

A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308: F(2x2, 3x3). Its transforms
are additions and halvings alone, so that float32 results are at least as close to exact ones as a plain convolution's.
"""

from __future__ import annotations

import torch
from torch.nn import functional

LEAST_BAND_BYTES = 16 * 1024**2  # of transformed cells at a time: about what a processor's cache holds


def transform_weight(weight: torch.Tensor) -> torch.Tensor:
    """Transform the weight of a convolution: [O, I, 3, 3] -> [16, O, I], of the same type, stored as [O, 16, I]."""
    num_out, num_in = weight.shape[:2]
    rows = weight.new_tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])
    both = torch.kron(rows, rows)  # [16, 9]
    taps = weight.permute(0, 2, 3, 1).reshape(num_out, 9, num_in)
    return torch.matmul(both, taps).transpose(0, 1)


def num_tiles(x: torch.Tensor) -> int:
    """Return how many 2x2 cells of the result a picture `x` [B, C, H, W] has."""
    return x.shape[0] * ((x.shape[2] + 1) // 2) * ((x.shape[3] + 1) // 2)


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Convolve with a stride of 1 and one cell of zeros around.

    `x` [B, I, H, W], `weight` from `transform_weight`, `bias` [O] -> [B, O, H, W] with channels innermost. The result
    is made in bands of rows, whose buffers are used again and again: new ones cost more than the additions.
    """
    batch, num_in, height, width = x.shape
    num_out, high, wide = weight.shape[1], (height + 1) // 2, (width + 1) // 2
    cells = functional.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1 + width % 2, 1, 1 + height % 2))  # [B, 2h+2, 2w+2, I]
    out = x.new_empty(batch, 2 * high, 2 * wide, num_out)
    bytes_a_row = 16 * batch * wide * (num_in + num_out) * x.element_size()
    # Each band reads all weights: few bands where those are large.
    rows_a_band = max(1, min(high, max(LEAST_BAND_BYTES, 2 * weight.nbytes) // bytes_a_row))
    before = x.new_empty(16 * batch * rows_a_band * wide * num_in)
    after = x.new_empty(16 * batch * rows_a_band * wide * num_out)
    for top in range(0, high, rows_a_band):
        rows = min(rows_a_band, high - top)
        tiles = batch * rows * wide
        spread = before[: 16 * tiles * num_in].view(16, tiles, num_in)
        products = after[: 16 * tiles * num_out].view(16, tiles, num_out)
        _spread(cells[:, 2 * top : 2 * (top + rows) + 2], spread.view(4, 4, batch, rows, wide, num_in))
        torch.bmm(spread, weight.transpose(1, 2), out=products)
        _gather(products.view(4, 4, batch, rows, wide, num_out), bias, out[:, 2 * top : 2 * (top + rows)])
    return out[:, :height, :width].permute(0, 3, 1, 2)


def _spread(cells: torch.Tensor, out: torch.Tensor) -> None:
    """Transform the overlapping 4x4 cells of `cells` [B, 2h+2, 2w+2, C] into `out` [4, 4, B, h, w, C]."""
    high, wide = out.shape[3:5]
    a, b, c, d = (cells[:, row : row + 2 * high : 2] for row in range(4))
    for row, made in enumerate((a - c, b + c, c - b, b - d)):
        e, f, g, h = (made[:, :, place : place + 2 * wide : 2] for place in range(4))
        torch.sub(e, g, out=out[row, 0])
        torch.add(f, g, out=out[row, 1])
        torch.sub(g, f, out=out[row, 2])
        torch.sub(f, h, out=out[row, 3])


def _gather(products: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """Transform `products` [4, 4, B, h, w, O], which is used up, into the 2x2 cells of `out` [B, 2h, 2w, O]."""
    upper = (products[1] + products[2]).add_(products[0])  # [4, B, h, w, O]
    lower = products[1].sub_(products[2]).sub_(products[3])
    for place, (a, b, c, d) in enumerate((upper, lower)):
        left, right = out[:, place::2, 0::2], out[:, place::2, 1::2]
        torch.add(a if bias is None else a.add_(bias), b, out=left)
        left.add_(c)
        torch.sub(b, c, out=right)
        right.sub_(d if bias is None else d.sub_(bias))
