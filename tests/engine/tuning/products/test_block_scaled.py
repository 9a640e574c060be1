"""MXFP8 and NVFP4: rows quantised as files have them, and the call of the card's product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.formats.quantised.comfy_quant import (
    SCALE,
    SECOND_SCALE,
    SMOOTHING,
    Mxfp8Packing,
    Nvfp4Packing,
    untiled,
)
from darkroom.engine.tuning.products.block_scaled import (
    FLOAT4_LARGEST,
    BlockRows,
    BlockScaledProducts,
    float4_codes,
    quantise_mxfp8,
    quantise_nvfp4,
    tiled,
)

MOST_ERROR = {"mxfp8": 0.04, "nvfp4": 0.13}  # relative L2 of numbers with three bits of mantissa, and with one


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def values(rows: BlockRows, shape: tuple[int, int]) -> torch.Tensor:
    """Unpack rows as the weights of files are."""
    out, size = torch.empty(shape), torch.Size(shape)
    if rows.second is None:
        Mxfp8Packing(size, (SCALE,)).unpack(rows.codes, {SCALE: rows.scales}, out)
    else:
        scales = {SCALE: rows.scales, SECOND_SCALE: rows.second}
        Nvfp4Packing(size, (SCALE, SECOND_SCALE)).unpack(rows.codes, scales, out)
    return out


class Card:
    """Computes a product as a card does, from codes and scales, and counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, rows: torch.Tensor, columns: torch.Tensor, **given: Any) -> torch.Tensor:
        self.num_calls += 1
        weight = columns.t()
        assert rows.is_contiguous() and weight.is_contiguous(), "the second one's columns follow each other"
        one = torch.ones(())
        is_wide = given["scale_a"].dtype == torch.float8_e8m0fnu
        assert rows.dtype == (torch.float8_e4m3fn if is_wide else torch.float4_e2m1fn_x2)
        parts = []
        for codes, scale in ((rows, given["scale_a"]), (weight, given["scale_b"])):
            if not is_wide:
                codes = codes.view(torch.uint8)
            shape = (codes.shape[0], codes.shape[1] * (1 if is_wide else 2))
            parts.append(values(BlockRows(codes, scale.view(torch.uint8), None if is_wide else one), shape))
        out: torch.Tensor = (parts[0] @ parts[1].t()).to(given["out_dtype"])
        return out


def layer_of(kind: str, weight: torch.Tensor) -> tuple[nn.Linear, Mxfp8Packing | Nvfp4Packing]:
    rows = quantise_mxfp8(weight) if kind == "mxfp8" else quantise_nvfp4(weight)
    layer = nn.Linear(1, 1, bias=False).requires_grad_(False)
    layer.weight = nn.Parameter(rows.codes, requires_grad=False)
    layer.register_buffer(SCALE, rows.scales)
    if rows.second is None:
        return layer, Mxfp8Packing(weight.shape, (SCALE,))
    layer.register_buffer(SECOND_SCALE, rows.second)
    return layer, Nvfp4Packing(weight.shape, (SCALE, SECOND_SCALE))


def test_scales_lie_in_tiles_as_files_have_them() -> None:
    for shape in ((1, 1), (128, 4), (130, 7), (300, 12)):
        scales = torch.randint(0, 256, shape, dtype=torch.uint8)
        flat = tiled(scales)
        assert flat.numel() % 512 == 0 and torch.equal(untiled(flat, *shape), scales)


@pytest.mark.parametrize("kind", MOST_ERROR)
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_rows_are_near_whatever_their_size(kind: str, size: float) -> None:
    x = drawn(0, 130, 96) * size
    x[7] = 0.0
    x[9] *= 100.0
    rows = quantise_mxfp8(x) if kind == "mxfp8" else quantise_nvfp4(x)
    found = values(rows, (130, 96))
    assert not found[7].any() and found.isfinite().all()
    assert relative_error(found[9], x[9]) < MOST_ERROR[kind] and relative_error(found[:7], x[:7]) < MOST_ERROR[kind]


def test_numbers_of_four_bits_are_the_nearest_ones() -> None:
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    given = torch.linspace(-7, 7, 2801)
    codes = float4_codes(given).long()
    found = numbers[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
    nearest = (given.abs().unsqueeze(1) - numbers).abs().amin(1)
    assert torch.allclose((found - given).abs(), nearest, atol=1e-6)
    assert float4_codes(torch.tensor([0.25, 0.75, 2.5, 3.5, 5.0, 9.0])).tolist() == [0, 2, 4, 6, 6, 7]
    assert numbers[-1] == FLOAT4_LARGEST


@pytest.mark.parametrize("kind", MOST_ERROR)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_is_that_of_the_unpacked_weight(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card()
    products = BlockScaledProducts(card)
    monkeypatch.setattr(products, "has", lambda *_, **__: True)
    layer, packing = layer_of(kind, drawn(1, 64, 96))
    unpacked = torch.empty(64, 96)
    packing.unpack(layer.weight, dict(layer.named_buffers()), unpacked)
    multiply = products.product(layer, packing, dtype)
    assert multiply is not None
    x, bias = drawn(0, 5, 96).to(dtype), drawn(2, 64).to(dtype)
    for given in (bias, None):
        found = multiply(x, given)
        exact = x.double() @ unpacked.double().t() + (0.0 if given is None else given.double())
        assert found.dtype == dtype and relative_error(found.double(), exact) < MOST_ERROR[kind]
    assert card.num_calls == 2


def test_columns_that_were_smoothed_are_scaled_in_the_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    products = BlockScaledProducts(Card())
    monkeypatch.setattr(products, "has", lambda *_, **__: True)
    layer, _ = layer_of("nvfp4", drawn(1, 32, 64))
    layer.register_buffer(SMOOTHING, torch.linspace(0.5, 2.0, 64))
    packing = Nvfp4Packing(torch.Size((32, 64)), (SCALE, SECOND_SCALE, SMOOTHING), is_smoothed=True)
    unpacked = torch.empty(32, 64)
    packing.unpack(layer.weight, dict(layer.named_buffers()), unpacked)
    multiply = products.product(layer, packing, torch.bfloat16)
    assert multiply is not None
    x = drawn(0, 5, 64).bfloat16()
    assert relative_error(multiply(x, None).double(), x.double() @ unpacked.double().t()) < MOST_ERROR["nvfp4"]


def test_odd_sides_and_devices_without_the_product_are_left_to_unpacking() -> None:
    products = BlockScaledProducts(Card())
    layer, packing = layer_of("mxfp8", drawn(1, 64, 96))
    assert products.product(layer, packing, torch.bfloat16) is None, "no processor has it"
    assert products.product(layer, packing.of_shape(torch.Size((60, 96))), torch.bfloat16) is None
