"""Convolutions along time whose weights are a direction and a length (Salimans et al. 2016, arXiv 1602.07868).

`B` batch, `C` channels, `S` samples. Tensors are `weight_v` and `weight_g`, as torch named them first; later files call
them `parametrizations.weight.original1` and `original0`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.shapes import Shapes

LATER_NAMES = {".weight_g": ".parametrizations.weight.original0", ".weight_v": ".parametrizations.weight.original1"}


class WeightNorm(nn.Module):
    """The two parts of a weight of this shape, whose first axis has a length for each of its entries, and a bias."""

    def __init__(self, *shape: int, num_biases: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(num_biases)) if num_biases else None
        self.weight_g = nn.Parameter(torch.empty(shape[0], *(1,) * (len(shape) - 1)))
        self.weight_v = nn.Parameter(torch.empty(shape))

    @property
    def weight(self) -> torch.Tensor:
        return torch._weight_norm(self.weight_v, self.weight_g, 0)


class NormedConv1d(WeightNorm):
    """A convolution [B, C, S] -> [B, out_channels, S]."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(out_channels, in_channels, kernel, num_biases=out_channels if bias else 0)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)


class NormedConvTranspose1d(WeightNorm):
    """A transposed convolution, which makes the sequence `stride` times as long."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, stride: int, padding: int) -> None:
        super().__init__(in_channels, out_channels, kernel, num_biases=out_channels)
        self.stride, self.padding = stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv_transpose1d(x, self.weight, self.bias, self.stride, self.padding)


def first_names(shapes: Shapes) -> dict[str, str]:
    """Return the names of tensors as networks here have them: first name -> name in the file."""
    names = {}
    for name in shapes:
        ours = name
        for first, later in LATER_NAMES.items():
            ours = ours.replace(later, first)
        names[ours] = name
    return names
