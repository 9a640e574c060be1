"""Products of a layer with its weight as it is stored: which layers have one, and what is computed for them.

A weight is stored as float8 numbers (of a network that is kept so, or with a scale of ComfyUI's files), as int8 numbers
with a scale for all or each row, perhaps rotated (ConvRot), or in blocks with a scale each (MXFP8, NVFP4). Blocks of
GGUF files have scales along the sums, which no product of integers takes: they are unpacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.formats.quantised.comfy_quant import SCALE, IntegerPacking, Mxfp8Packing, Nvfp4Packing, hadamard
from darkroom.engine.formats.quantised.packed_layers import PACKINGS
from darkroom.engine.formats.quantised.packing import Packing
from darkroom.engine.formats.quantised.scaled_float8 import ScaledFloat8Packing
from darkroom.engine.layers.basic import linear
from darkroom.engine.tuning.products.block_scaled import BlockScaledProducts
from darkroom.engine.tuning.products.float8 import MULTIPLE as FLOAT8_MULTIPLE
from darkroom.engine.tuning.products.float8 import Float8Products, Float8Way
from darkroom.engine.tuning.products.fused import integer_scaler, row_quantiser
from darkroom.engine.tuning.products.int8 import MULTIPLE as INT8_MULTIPLE
from darkroom.engine.tuning.products.int8 import Int8Products, multiplies_int8

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

Multiply = Callable[[torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""(rows [M, K], bias [N] or None) -> [M, N] of the rows' type, with the weight that the layer has now"""


@dataclass(frozen=True, slots=True)
class StoredProduct:
    """Product of one layer. `dtype` is the type of its weight as it is stored, `key` what its speed depends on."""

    layer: nn.Module
    dtype: torch.dtype
    shape: tuple[int, int]
    key: tuple[object, ...]
    multiply: Multiply
    unpack: Callable[[torch.dtype], torch.Tensor]  # -> the weight [N, K] in that type, as the plain path has it


class StoredProducts:
    """Makes products for layers on one kind of device after the other; what it has found out is kept."""

    def __init__(
        self,
        float8: Float8Products | None = None,
        int8: Int8Products | None = None,
        blocks: BlockScaledProducts | None = None,
    ) -> None:
        self.float8 = Float8Products(row_quantiser) if float8 is None else float8
        self.int8 = Int8Products(row_quantiser, integer_scaler) if int8 is None else int8
        self.blocks = BlockScaledProducts() if blocks is None else blocks

    def of(self, layer: nn.Module, computed: torch.dtype) -> StoredProduct | None:
        """Return the product of a linear layer that computes in this type; None where its device has none."""
        weight, packing = layer.get_parameter("weight"), packing_of(layer)
        if packing is None:
            return self._float8(layer, weight.shape, None, computed) if weight.dtype in FLOAT8 else None
        if len(packing.shape) != 2:
            return None
        if isinstance(packing, ScaledFloat8Packing):
            return self._float8(layer, packing.shape, packing, computed)
        if isinstance(packing, IntegerPacking) and packing.bits == 8:
            return self._int8(layer, packing)
        if isinstance(packing, (Mxfp8Packing, Nvfp4Packing)):
            multiply = self.blocks.product(layer, packing, computed)
            if multiply is not None:
                return _stored(layer, type(packing).__name__, packing.shape, packing, multiply)
        return None

    def _float8(
        self, layer: nn.Module, shape: torch.Size, packing: ScaledFloat8Packing | None, computed: torch.dtype
    ) -> StoredProduct | None:
        weight = layer.get_parameter("weight")
        if any(side % FLOAT8_MULTIPLE for side in shape):
            return None
        way = self.float8.way(weight.device, weight.dtype, computed)
        if way is None:
            return None
        scale = 1.0 if packing is None else packing.scale
        scales = self.float8.column_scales(scale, shape[0], way, weight.device)
        return _stored(layer, f"float8 {way}", shape, packing, self._float8_multiply(layer, shape, scales, way))

    def _float8_multiply(self, layer: nn.Module, shape: torch.Size, scales: torch.Tensor, way: Float8Way) -> Multiply:
        def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            codes = layer.get_parameter("weight").view(shape)
            return self.float8.multiply(x, codes, scales, bias, way)

        return multiply

    def _int8(self, layer: nn.Module, packing: IntegerPacking) -> StoredProduct | None:
        device = layer.get_parameter("weight").device
        if any(side % INT8_MULTIPLE for side in packing.shape) or not multiplies_int8(device):
            return None
        num_columns, size = packing.shape[0], packing.rotation
        rotation = hadamard(size, device) if size else None

        def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            if rotation is not None:  # groups of columns of the weight were multiplied by it before they were rounded
                x = torch.matmul(x.view(len(x), -1, size), rotation.to(x.dtype)).flatten(1)
            scales = layer.get_buffer(SCALE).float().reshape(-1).expand(num_columns).contiguous()
            return self.int8.multiply(x, layer.get_parameter("weight"), scales, bias)

        return _stored(layer, f"int8 rotated by {size}", packing.shape, packing, multiply)


def packing_of(layer: nn.Module) -> Packing | None:
    """Return the packing of a layer's weight; None for one that is not packed."""
    found: Packing | None = layer.__dict__.get(PACKINGS, {}).get("weight")
    return found


def _stored(
    layer: nn.Module, kind: str, shape: torch.Size, packing: Packing | None, multiply: Multiply
) -> StoredProduct:
    weight = layer.get_parameter("weight")

    def unpack(dtype: torch.dtype) -> torch.Tensor:
        codes = layer.get_parameter("weight")
        if packing is None:
            return codes.to(dtype)
        values = torch.empty(packing.shape, dtype=dtype, device=codes.device)
        packing.unpack(codes, {name: layer.get_buffer(name) for name in packing.scales}, values)
        return values

    key = (kind, *shape, weight.dtype, str(weight.device), layer.bias is not None)
    return StoredProduct(layer, weight.dtype, (shape[0], shape[1]), key, multiply, unpack)


def plain_product(product: StoredProduct, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute what the plain path computes: the product with the weight unpacked to the type of `x` [..., K]."""
    return linear(x, product.unpack(x.dtype), bias)
