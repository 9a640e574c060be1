"""Batch norm of a network that is not trained any more: a scale and a shift of each channel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class FrozenBatchNorm(nn.Module):
    """Normalisation of [B, C, h, w] by stored means and variances. Names are those of `nn.BatchNorm2d`.

    `running_mean` and `running_var` are parameters, so that they are loaded and offloaded as weights are.
    """

    def __init__(self, channels: int, eps: float = 1e-5, *, is_affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels)) if is_affine else None
        self.bias = nn.Parameter(torch.empty(channels)) if is_affine else None
        self.running_mean = nn.Parameter(torch.empty(channels))
        self.running_var = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
