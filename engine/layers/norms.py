"""Normalisation by the root mean square (Zhang and Sennrich 2019, arXiv 1910.07467), under the names of model files."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class RmsNorm(nn.RMSNorm):
    """A norm of the last dimension with a factor for each channel, called `weight`."""

    def __init__(self, width: int, eps: float | None = 1e-6) -> None:
        super().__init__(width, eps=eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class ScaleRmsNorm(nn.RMSNorm):
    """The same norm whose factors files call `scale`."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__(width, eps=eps, elementwise_affine=False)
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.scale.to(x.dtype), self.eps)


class OnePlusRmsNorm(RmsNorm):
    """A norm whose factors are one plus its weight, rounded to the type that ComfyUI keeps weights in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.weight.dtype if self.weight.dtype == torch.bfloat16 else torch.float16
        factors = (self.weight.to(kept) + 1.0).to(x.dtype)
        return functional.rms_norm(x, self.normalized_shape, factors, self.eps)


class CentredRmsNorm(nn.Module):
    """The same norm in float32, whose factors are one plus its `scale`."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factors = self.scale.float() + 1.0
        return functional.rms_norm(x.float(), (x.shape[-1],), factors, self.eps).to(x.dtype)


class ChannelNorm(nn.RMSNorm):
    """Normalisation of the channels [B, C, ...] of every cell to unit root mean square, with a factor for each."""

    def __init__(self, channels: int, *, num_places: int) -> None:
        super().__init__(channels, elementwise_affine=False)
        self.factor = channels**0.5
        self.gamma = nn.Parameter(torch.empty(channels, *(1,) * num_places))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional.normalize(x, dim=1) * self.factor * self.gamma.to(x)
        return out


class DynamicTanh(nn.Module):
    """A hyperbolic tangent with a slope in place of a norm (Zhu et al. 2025, arXiv 2503.10622).

    It has a factor and an offset for each channel.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1))
        self.gamma, self.beta = (nn.Parameter(torch.empty(width)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alpha, gamma, beta = (item.to(x.dtype) for item in (self.alpha, self.gamma, self.beta))
        return gamma * torch.tanh(alpha * x) + beta
