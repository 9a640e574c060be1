"""Matrix products of weights in blocks that have a scale each: MXFP8 and NVFP4, on cards whose matrix units take them.

OCP Microscaling Formats 1.0: float8 (E4M3) in blocks of 32 with a power of two. NVIDIA's NVFP4: numbers of four bits
(E2M1) in blocks of 16 with a float8 scale, and one for the tensor. Blocks lie along `K`. Scales lie in tiles of 128
rows and 4 blocks, in which files have them already. Activations [M, K] are quantised alike on the way.

`torch._scaled_mm` has such products since 2.8 on Blackwell. Each is tried once, on a small product whose result is
known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.formats.quantised.comfy_quant import (
    SCALE,
    SECOND_SCALE,
    SMOOTHING,
    TILE_COLUMNS,
    TILE_ROWS,
    Mxfp8Packing,
    Nvfp4Packing,
)
from darkroom.engine.tuning.products.fused import has_kernels

MULTIPLE = 32  # of both sides of a weight
MX_BLOCK, NV_BLOCK = 32, 16
FLOAT8_LARGEST, FLOAT4_LARGEST = 448.0, 6.0
FLOAT32_FRACTION_BITS, EXPONENT_BIAS, LARGEST_EXPONENT = 23, 127, 254
LEAST_SCALE = 1e-12
PROBE_ROWS, PROBE_SIDE = 128, 128
PROBE_ERROR = 0.2  # relative; of a right product of numbers of four bits less than that

log = logging.getLogger(__name__)

Multiply = Callable[[torch.Tensor, "torch.Tensor | None"], torch.Tensor]
ScaledMm = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Codes [M, K] (or [M, K / 2] of four bits), scales in tiles, and one of the tensor (no dimension) or None."""

    codes: torch.Tensor
    scales: torch.Tensor
    second: torch.Tensor | None = None


class BlockScaledProducts:
    """Products of matrices with a scale for each block, where a device has them."""

    def __init__(self, scaled_mm: ScaledMm = torch._scaled_mm) -> None:
        self._scaled_mm = scaled_mm
        self._has: dict[Hashable, bool] = {}

    def product(self, layer: nn.Module, packing: Mxfp8Packing | Nvfp4Packing, computed: torch.dtype) -> Multiply | None:
        """Return the product of a layer with such a weight for activations of a type; None where there is none."""
        device = layer.get_parameter("weight").device
        is_wide = isinstance(packing, Mxfp8Packing)
        if any(side % MULTIPLE for side in packing.shape) or not self.has(device, computed, is_wide=is_wide):
            return None

        def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            codes, scales = layer.get_parameter("weight"), layer.get_buffer(SCALE)
            if isinstance(packing, Mxfp8Packing):
                return self.multiply(x, BlockRows(codes, scales), bias)
            if packing.is_smoothed:
                x = x * layer.get_buffer(SMOOTHING).to(x.dtype)
            return self.multiply(x, BlockRows(codes, scales, layer.get_buffer(SECOND_SCALE).float()), bias)

        return multiply

    def has(self, device: torch.device, computed: torch.dtype, *, is_wide: bool) -> bool:
        """Return True where a device multiplies MXFP8 (`is_wide`), or NVFP4, with activations of a type."""
        key = (str(device), computed, is_wide)
        if key not in self._has:
            self._has[key] = found = self._probed(device, computed, quantise_mxfp8 if is_wide else quantise_nvfp4)
            log.info("block-scaled product probed: device=%s is_mxfp8=%s found=%s", device, is_wide, found)
        return self._has[key]

    def multiply(self, x: torch.Tensor, weight: BlockRows, bias: torch.Tensor | None) -> torch.Tensor:
        """Return `x` [M, K] times the transposed weight [N, K], plus bias [N], in the type of `x`."""
        is_wide = weight.second is None
        rows = self._quantised(x, is_wide=is_wide)
        number, scale = (
            (torch.float8_e4m3fn, torch.float8_e8m0fnu) if is_wide else (torch.float4_e2m1fn_x2, torch.float8_e4m3fn)
        )
        out = self._scaled_mm(
            rows.codes.view(number), weight.codes.view(number).t(), scale_a=rows.scales.view(scale),
            scale_b=weight.scales.view(scale).reshape(-1), out_dtype=torch.bfloat16,
        )  # fmt: skip
        if rows.second is not None and weight.second is not None:
            out = out * (rows.second * weight.second).to(out.dtype)
        out = out.to(x.dtype)
        return out if bias is None else out.add_(bias)

    def _quantised(self, x: torch.Tensor, *, is_wide: bool) -> BlockRows:
        if not has_kernels(x.device):
            return quantise_mxfp8(x) if is_wide else quantise_nvfp4(x)
        from darkroom.engine.tuning.kernels import quantise  # Triton is there on GPU machines alone

        if is_wide:
            return BlockRows(*quantise.quantise_mxfp8(x, FLOAT8_LARGEST, LEAST_SCALE))
        second = tensor_scale(x)
        return BlockRows(*quantise.quantise_nvfp4(x, second, FLOAT4_LARGEST, LEAST_SCALE), second)

    def _probed(
        self, device: torch.device, computed: torch.dtype, quantise: Callable[[torch.Tensor], BlockRows]
    ) -> bool:
        if device.type in ("cpu", "meta"):
            return False
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(PROBE_ROWS, PROBE_SIDE, generator=generator).to(device, computed)
        weight = torch.randn(PROBE_SIDE, PROBE_SIDE, generator=generator).to(device)
        expected = x.double() @ weight.double().t()
        try:
            found = self.multiply(x, quantise(weight), None).double()
        except Exception as error:  # noqa: BLE001 - torch's and Triton's compilers have many for what a card lacks
            log.debug("block-scaled product not used: reason=%s: %s", type(error).__name__, error)
            return False
        return float((found - expected).norm()) <= PROBE_ERROR * float(expected.norm())


def quantise_mxfp8(x: torch.Tensor) -> BlockRows:
    """Quantise rows [M, K] to float8 in blocks of 32 with powers of two as scales (their exponents, uint8)."""
    blocks = x.float().view(len(x), -1, MX_BLOCK)
    least = (blocks.abs().amax(-1) / FLOAT8_LARGEST).clamp_min(LEAST_SCALE)
    # The next power of two: the exponent of the number, one more where the fraction is not zero.
    exponents = (least.view(torch.int32) + (1 << FLOAT32_FRACTION_BITS) - 1) >> FLOAT32_FRACTION_BITS
    exponents.clamp_(1, LARGEST_EXPONENT - 1)
    inverse = ((LARGEST_EXPONENT - exponents) << FLOAT32_FRACTION_BITS).view(torch.float32)
    codes = (blocks * inverse.unsqueeze(-1)).flatten(1).to(torch.float8_e4m3fn)
    return BlockRows(codes, tiled(exponents.to(torch.uint8)))


def quantise_nvfp4(x: torch.Tensor) -> BlockRows:
    """Quantise rows [M, K] to E2M1, two in a byte with the first above, in blocks of 16 with a float8 scale each."""
    numbers, second = x.float(), tensor_scale(x)
    blocks = numbers.view(len(x), -1, NV_BLOCK)
    scales = (blocks.abs().amax(-1) / (FLOAT4_LARGEST * second)).to(torch.float8_e4m3fn)
    scaled = blocks / (scales.float() * second).clamp_min(LEAST_SCALE).unsqueeze(-1)
    codes = float4_codes(scaled.flatten(1))
    return BlockRows(codes[:, ::2] << 4 | codes[:, 1::2], tiled(scales.view(torch.uint8)), second)


def tensor_scale(x: torch.Tensor) -> torch.Tensor:
    """Return the scale of a tensor (float32, no dimension) by which those of its blocks fill the range of float8."""
    return (x.abs().amax().float() / (FLOAT4_LARGEST * FLOAT8_LARGEST)).clamp_min(LEAST_SCALE)


def float4_codes(values: torch.Tensor) -> torch.Tensor:
    """Return the codes (uint8) of the E2M1 numbers nearest to values, of two as near the one with an even code."""
    sizes = values.abs()
    codes = (sizes > 0.25).to(torch.uint8)
    for border, is_up in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        codes += (sizes >= border) if is_up else (sizes > border)
    return codes | (values < 0).to(torch.uint8) << 3


def tiled(scales: torch.Tensor) -> torch.Tensor:
    """Return block scales [M, blocks] of one byte as they lie in tiles, flat: `comfy_quant.untiled` the other way."""
    rows, columns = scales.shape
    padded = functional.pad(scales, (0, -columns % TILE_COLUMNS, 0, -rows % TILE_ROWS))
    tiles = padded.view(len(padded) // TILE_ROWS, 4, 32, -1, TILE_COLUMNS)  # [down, 4, 32, across, columns]
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1)
