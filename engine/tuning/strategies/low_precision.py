"""Layers that compute in a narrower type: bfloat16, and products in float8 or int8 with a scale for each row.

The narrow weights are made of the weights with their patches, and kept while these are the same. Whether a product in
eight bits is faster than the plain one, and for how many rows, is measured for each shape of a layer.
P. Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433; LLM.int8(), arXiv 2208.07339.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.tuning.products.float8 import ACTIVATIONS, Float8Products, quantised_tensor
from darkroom.engine.tuning.products.float8 import MULTIPLE as FLOAT8_MULTIPLE
from darkroom.engine.tuning.products.fused import integer_scaler, row_quantiser
from darkroom.engine.tuning.products.int8 import MULTIPLE as INT8_MULTIPLE
from darkroom.engine.tuning.products.int8 import Int8Products, multiplies_int8
from darkroom.engine.tuning.products.times import ProductTimes, RowChoice
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
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


@dataclass(frozen=True, slots=True)
class Narrow:
    """A weight in eight bits: its codes [N, K], and the scales of its rows, or one for all."""

    codes: torch.Tensor
    scales: torch.Tensor


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
        layers = self._layers(use)
        parts = [part for layer in layers for part in (layer.get_parameter("weight"), _bias(layer)) if part is not None]
        made = use.evaluation.made.of(self.name, parts, lambda: _narrow_parts(layers))
        pairs = zip(layers, made[::2], made[1::2], strict=True)
        return replace_forwards(
            [(layer, _in_bfloat16(layer, weight, bias)) for layer, weight, bias in pairs if weight is not None]
        )

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
    def narrowed(self, weight: torch.Tensor) -> Narrow | None:
        """Return a weight in eight bits; None where its device has no such product."""

    @abstractmethod
    def multiply(self, x: torch.Tensor, narrow: Narrow, bias: torch.Tensor | None) -> torch.Tensor:
        """Return rows `x` [M, K] times the transposed weight, plus bias [N]: [M, N]."""

    def unfit(self, use: SamplingUse) -> str | None:
        return _no_room(use, self._layers(use), share=0.5)

    def apply(self, use: SamplingUse) -> Undo:
        layers = self._layers(use)
        weights = [layer.get_parameter("weight") for layer in layers]
        made = use.evaluation.made.of(self.name, weights, lambda: self._narrow_weights(layers))
        pairs = zip(layers, made[::2], made[1::2], strict=True)
        return replace_forwards(
            [
                (layer, self._forward(layer, Narrow(codes, scales)))
                for layer, codes, scales in pairs
                if codes is not None and scales is not None
            ]
        )

    def _layers(self, use: SamplingUse) -> list[nn.Module]:
        layers = unchanged_layers(use, (Linear, nn.Linear))
        return [layer for layer in layers if self.takes(layer) and computes_as_stored(use, layer)]

    def _narrow_weights(self, layers: Sequence[nn.Module]) -> list[torch.Tensor | None]:
        """Return codes and scales of each layer in turn, None for both where its product is never the faster way."""
        found: list[torch.Tensor | None] = []
        for layer in layers:
            weight, choice = layer.get_parameter("weight"), self._times.known(self._key(layer))
            narrow = self.narrowed(weight) if choice is None or choice else None
            if narrow is not None and not self._choice(layer, narrow):
                narrow = None
            found += [None, None] if narrow is None else [narrow.codes, narrow.scales]
        return found

    def _key(self, layer: nn.Module) -> tuple[object, ...]:
        weight = layer.get_parameter("weight")
        return (self.name, *weight.shape, weight.dtype, str(weight.device), layer.bias is not None)

    def _choice(self, layer: nn.Module, narrow: Narrow) -> RowChoice:
        weight, bias, plain = layer.get_parameter("weight"), _bias(layer), type(layer).forward
        return self._times.choice(
            self._key(layer),
            weight.new_empty(0, weight.shape[1]),
            lambda rows: self.multiply(rows, narrow, bias),
            lambda rows: plain(layer, rows),
        )

    def _forward(self, layer: nn.Module, narrow: Narrow) -> Callable[[torch.Tensor], torch.Tensor]:
        dtype, choice, plain = layer.get_parameter("weight").dtype, self._choice(layer, narrow), type(layer).forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])  # [M, K]
            if x.dtype != dtype or not len(rows) or not choice.at(len(rows)):
                out: torch.Tensor = plain(layer, x)
                return out
            return self.multiply(rows, narrow, _bias(layer)).view(*x.shape[:-1], -1)

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

    def narrowed(self, weight: torch.Tensor) -> Narrow | None:
        way = self._products.way(weight.device, ACTIVATIONS, weight.dtype)
        if way is None:
            return None
        if way.by_rows:
            rows = row_quantiser(weight.device)(weight, ACTIVATIONS)
            return Narrow(rows.codes, rows.scales.view(1, -1))
        return Narrow(*quantised_tensor(weight))

    def multiply(self, x: torch.Tensor, narrow: Narrow, bias: torch.Tensor | None) -> torch.Tensor:
        way = self._products.way(x.device, ACTIVATIONS, x.dtype)
        assert way is not None, "a weight was made for a device without the product"
        return self._products.multiply(x, narrow.codes, narrow.scales, bias, way)


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

    def narrowed(self, weight: torch.Tensor) -> Narrow | None:
        rows = row_quantiser(weight.device)(weight, torch.int8)
        return Narrow(rows.codes, rows.scales.view(-1))

    def multiply(self, x: torch.Tensor, narrow: Narrow, bias: torch.Tensor | None) -> torch.Tensor:
        return self._products.multiply(x, narrow.codes, narrow.scales, bias)


def _bias(layer: nn.Module) -> torch.Tensor | None:
    return None if layer.bias is None else layer.get_parameter("bias")


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


def _narrow_parts(layers: Sequence[nn.Module]) -> list[torch.Tensor | None]:
    """Return weight and bias of each layer in turn, in bfloat16."""
    parts = [part for layer in layers for part in (layer.get_parameter("weight"), _bias(layer))]
    return [None if part is None else part.to(torch.bfloat16) for part in parts]


def _in_bfloat16(
    layer: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        narrow = x.to(torch.bfloat16)
        if isinstance(layer, Conv2d):
            return layer._conv_forward(narrow, weight, bias).to(x.dtype)
        return functional.linear(narrow, weight, bias).to(x.dtype)

    return forward
