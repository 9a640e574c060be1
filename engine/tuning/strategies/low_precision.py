"""Layers that compute in a narrower type: bfloat16, and products in float8 or int8 with a scale for each row.

The narrow weights are made when a run begins, from the weights with the patches that they have then. Whether a product
in eight bits is faster than the plain one, and for how many rows, is measured for each shape of a layer.
P. Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433; LLM.int8(), arXiv 2208.07339.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from engine.architectures.layers import Conv2d, Linear
from engine.tuning.products.float8 import ACTIVATIONS, Float8Products, quantised_tensor
from engine.tuning.products.float8 import MULTIPLE as FLOAT8_MULTIPLE
from engine.tuning.products.fused import integer_scaler, row_quantiser
from engine.tuning.products.int8 import MULTIPLE as INT8_MULTIPLE
from engine.tuning.products.int8 import Int8Products, multiplies_int8
from engine.tuning.products.times import ProductTimes
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
INT8_CAPABILITY = (7, 5)
LEAST_WIDTH = 256  # narrower layers are bound by launches, and the first and last ones carry the latent
FLOATS = (torch.float32, torch.bfloat16, torch.float16)

Multiply = Callable[[torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""(rows [M, K], bias [N] or None) -> [M, N]"""


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


class EightBitLinear(Strategy, ABC):
    """Base of the strategies that multiply in eight bits."""

    quality = Quality.DRAFT
    makes_tensors = True
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})

    def __init__(self, times: ProductTimes | None = None) -> None:
        self._times = ProductTimes() if times is None else times

    @abstractmethod
    def takes(self, layer: nn.Module) -> bool:
        """Return True for a layer whose type and sides the product accepts."""

    @abstractmethod
    def narrowed(self, layer: nn.Module) -> Multiply | None:
        """Return the product with the layer's weight in eight bits; None where the device has none."""

    def unfit(self, use: SamplingUse) -> str | None:
        return _no_room(use, self._layers(use), share=0.5)

    def apply(self, use: SamplingUse) -> Undo:
        forwards = ((layer, self.forward(layer)) for layer in self._layers(use))
        return replace_forwards([(layer, forward) for layer, forward in forwards if forward is not None])

    def _layers(self, use: SamplingUse) -> list[nn.Module]:
        layers = unchanged_layers(use, (Linear, nn.Linear))
        return [layer for layer in layers if self.takes(layer) and computes_as_stored(use, layer)]

    def forward(self, layer: nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return the forward function of a layer by its product, where that is ever faster; else None."""
        multiply, plain = self.narrowed(layer), type(layer).forward
        if multiply is None:
            return None
        weight = layer.get_parameter("weight")
        bias = None if layer.bias is None else layer.get_parameter("bias")
        key = (self.name, *weight.shape, weight.dtype, str(weight.device), bias is not None)
        choice = self._times.choice(
            key,
            weight.new_empty(0, weight.shape[1]),
            lambda rows: multiply(rows, bias),
            lambda rows: plain(layer, rows),
        )
        if not choice:
            return None

        def forward(x: torch.Tensor) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])  # [M, K]
            if x.dtype != weight.dtype or not len(rows) or not choice.at(len(rows)):
                out: torch.Tensor = plain(layer, x)
                return out
            return multiply(rows, bias).view(*x.shape[:-1], -1)

        return forward


class Fp8Linear(EightBitLinear):
    """Matrix products in float8."""

    name = "fp8_linear"
    about = "matrix products of wide linear layers in float8 with a scale for each row"

    def __init__(self, products: Float8Products | None = None, times: ProductTimes | None = None) -> None:
        super().__init__(times)
        self._products = Float8Products(row_quantiser) if products is None else products

    def missing(self, machine: MachineFacts) -> str | None:
        return _missing_capability(machine, FP8_CAPABILITY)

    def takes(self, layer: nn.Module) -> bool:
        return _takes(layer, (torch.bfloat16, torch.float16), FLOAT8_MULTIPLE)

    def narrowed(self, layer: nn.Module) -> Multiply | None:
        original = layer.get_parameter("weight")
        way = self._products.way(original.device, ACTIVATIONS, original.dtype)
        if way is None:
            return None
        if way.by_rows:
            rows = row_quantiser(original.device)(original, ACTIVATIONS)
            weight, scales = rows.codes, rows.scales.view(1, -1)
        else:
            weight, scales = quantised_tensor(original)
        return lambda x, bias: self._products.multiply(x, weight, scales, bias, way)


class Int8Linear(EightBitLinear):
    """Matrix products in int8."""

    name = "int8_linear"
    about = "matrix products of wide linear layers in int8 with a scale for each row"

    def __init__(self, products: Int8Products | None = None, times: ProductTimes | None = None) -> None:
        super().__init__(times)
        self._products = Int8Products(row_quantiser, integer_scaler) if products is None else products

    def missing(self, machine: MachineFacts) -> str | None:
        if machine.device_type == "cpu":
            return None if multiplies_int8(torch.device("cpu")) else "needs a processor with VNNI or AMX"
        return _missing_capability(machine, INT8_CAPABILITY)

    def takes(self, layer: nn.Module) -> bool:
        return _takes(layer, FLOATS, INT8_MULTIPLE)

    def narrowed(self, layer: nn.Module) -> Multiply | None:
        original = layer.get_parameter("weight")
        rows = row_quantiser(original.device)(original, torch.int8)
        scales = rows.scales.view(-1)
        return lambda x, bias: self._products.multiply(x, rows.codes, scales, bias)


def _missing_capability(machine: MachineFacts, least: tuple[int, int]) -> str | None:
    if machine.device_type != "cuda" or machine.capability is None:
        return "needs a CUDA device"
    if machine.capability < least:
        return f"needs compute capability {least[0]}.{least[1]}; got {machine.capability}"
    return None


def _takes(layer: nn.Module, dtypes: Sequence[torch.dtype], multiple: int) -> bool:
    weight = layer.get_parameter("weight")
    is_wide = min(weight.shape) >= LEAST_WIDTH and not any(side % multiple for side in weight.shape)
    return weight.dtype in dtypes and is_wide


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
