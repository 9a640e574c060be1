"""Layers that compute in a narrower type: bfloat16, and float8 with one scale per tensor.

The narrow weights are made when a run begins, from the weights with the patches that they have then.
P. Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from engine.architectures.layers import Conv2d, Linear
from engine.tuning.quality import Quality
from engine.tuning.strategy import (
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    computes_as_stored,
    custom_code,
    offloaded,
    replace_forwards,
    unchanged_layers,
)

FREE_SHARE = 0.5  # of the free memory that the narrow weights may take
FP8_CAPABILITY = (8, 9)
FP8_MAX = 448.0  # of float8_e4m3fn
FP8_MULTIPLE = 16  # of both sides of a matrix
FP8_LEAST_WIDTH = 256  # narrower layers are bound by launches, and the first and last ones carry the latent


class Bfloat16Layers(Strategy):
    """Linear layers and convolutions in bfloat16 where the network computes in float32."""

    name = "bfloat16_layers"
    quality = Quality.DRAFT
    makes_tensors = True
    about = "linear layers and convolutions of a float32 network compute in bfloat16"
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})

    def unfit(self, use: SamplingUse) -> str | None:
        if use.denoiser.compute_dtype != torch.float32:
            return f"the network computes in {str(use.denoiser.compute_dtype).removeprefix('torch.')}"
        return _no_room(use, self._layers(use), share=0.5)

    def apply(self, use: SamplingUse) -> Undo:
        return replace_forwards([(layer, _in_bfloat16(layer)) for layer in self._layers(use)])

    def _layers(self, use: SamplingUse) -> list[nn.Module]:
        return [layer for layer in unchanged_layers(use, (Linear, Conv2d)) if computes_as_stored(use, layer)]


class Fp8Linear(Strategy):
    """Matrix products in float8."""

    name = "fp8_linear"
    quality = Quality.DRAFT
    makes_tensors = True
    about = "matrix products of wide linear layers in float8 with one scale per tensor"
    is_opt_in = True
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})

    def missing(self, machine: MachineFacts) -> str | None:
        if machine.device_type != "cuda" or machine.capability is None:
            return "needs a CUDA device"
        if machine.capability < FP8_CAPABILITY:
            return f"needs compute capability {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]}; got {machine.capability}"
        return None

    def unfit(self, use: SamplingUse) -> str | None:
        return _no_room(use, [layer for layer in unchanged_layers(use, (Linear,)) if takes_fp8(layer)], share=0.5)

    def apply(self, use: SamplingUse) -> Undo:
        layers = [layer for layer in unchanged_layers(use, (Linear,)) if takes_fp8(layer)]
        return replace_forwards([(layer, fp8_forward(layer)) for layer in layers])


def _no_room(use: SamplingUse, layers: list[nn.Module], share: float) -> str | None:
    found = custom_code(use) or offloaded(use)
    if found is not None:
        return found
    if not layers:
        return "the network has no layer of this kind"
    num_bytes = sum(layer.get_parameter("weight").nbytes * share for layer in layers)
    return "too little memory for the narrow weights" if num_bytes > use.patcher.free_bytes() * FREE_SHARE else None


def _in_bfloat16(layer: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    weight = layer.get_parameter("weight").to(torch.bfloat16)
    bias = None if layer.bias is None else layer.get_parameter("bias").to(torch.bfloat16)

    def forward(x: torch.Tensor) -> torch.Tensor:
        narrow = x.to(torch.bfloat16)
        if isinstance(layer, Conv2d):
            return layer._conv_forward(narrow, weight, bias).to(x.dtype)
        return functional.linear(narrow, weight, bias).to(x.dtype)

    return forward


def takes_fp8(layer: nn.Module) -> bool:
    """Return True for a wide layer of 16 bit weights whose sides `_scaled_mm` accepts."""
    weight = layer.get_parameter("weight")
    return (
        weight.dtype in (torch.bfloat16, torch.float16)
        and min(weight.shape) >= FP8_LEAST_WIDTH
        and not any(side % FP8_MULTIPLE for side in weight.shape)
    )


def fp8_forward(layer: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the forward function of a linear layer with float8 weights and inputs."""
    original = layer.get_parameter("weight")
    bias = None if layer.bias is None else layer.get_parameter("bias")
    weight, weight_scale = to_fp8(original)  # [O, I]
    columns = weight.t()  # column-major, as the kernel wants it

    def forward(x: torch.Tensor) -> torch.Tensor:
        rows, scale = to_fp8(x.reshape(-1, x.shape[-1]))
        out = torch._scaled_mm(rows, columns, scale_a=scale, scale_b=weight_scale, bias=bias, out_dtype=x.dtype)
        return out.view(*x.shape[:-1], -1)

    return forward


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x` in float8_e4m3fn and the factor (float32, no dimension) by which it is to be multiplied."""
    scale = (x.abs().amax().float() / FP8_MAX).clamp_min(1e-12)
    return (x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale
