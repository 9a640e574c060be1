"""Products in float8 by torch's own operation on this processor, and the choice of their form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.tuning.products.block_scaled import BlockScaledProducts, quantise_mxfp8
from darkroom.engine.tuning.products.float8 import Float8Products, Float8Way, ways_of
from darkroom.engine.tuning.products.fused import row_quantiser
from darkroom.engine.tuning.products.rows import quantise_rows

CPU = torch.device("cpu")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MOST_ERROR = 0.04  # relative L2: activations are off by up to 2^-4 of themselves, weights are what is stored


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference(rows: torch.Tensor, columns: torch.Tensor, **given: Any) -> torch.Tensor:
    """Compute what `torch._scaled_mm` does, in float64: for tests of how it is called."""
    out = (rows.double() * given["scale_a"].double()) @ (columns.double() * given["scale_b"].double())
    bias = given.get("bias")
    whole: torch.Tensor = out if bias is None else out + bias.double()
    return whole.to(given["out_dtype"])


@pytest.mark.parametrize("weight_type", [E4M3, E5M2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 7, 40])
def test_a_product_is_that_of_the_unpacked_weight(weight_type: torch.dtype, dtype: torch.dtype, num_rows: int) -> None:
    products = Float8Products(row_quantiser)
    way = products.way(CPU, weight_type, dtype)
    if way is None:
        pytest.skip("this processor multiplies no float8")
    x, weight, bias = drawn(0, num_rows, 96).to(dtype), drawn(1, 48, 96).to(weight_type), drawn(2, 48).to(dtype)
    x[0] *= 100.0
    scales = products.column_scales(0.25, 48, way, CPU)
    for given in (bias, None):
        found = products.multiply(x, weight, scales, given, way)
        exact = x.double() @ (weight.double() * 0.25).t() + (0.0 if given is None else given.double())
        assert found.dtype == dtype and found.shape == (num_rows, 48)
        for row in range(num_rows):
            assert relative_error(found[row].double(), exact[row]) < MOST_ERROR


@pytest.mark.parametrize("way", ways_of(torch.float16), ids=str)
def test_every_form_gives_the_same_product(way: Float8Way) -> None:
    products = Float8Products(row_quantiser, reference)
    x, weight, bias = drawn(0, 20, 64).half(), drawn(1, 32, 64).to(E4M3), drawn(2, 32).half()
    scales = products.column_scales(0.5, 32, way, CPU)
    exact = x.double() @ (weight.double() * 0.5).t() + bias.double()
    assert relative_error(products.multiply(x, weight, scales, bias, way).double(), exact) < MOST_ERROR
    assert products.column_scales(0.5, 32, way, CPU) is scales, "a graph reads the same tensor in every run"


def test_the_first_form_that_is_right_is_used_and_asked_for_once() -> None:
    calls: list[dict[str, Any]] = []

    def card(rows: torch.Tensor, columns: torch.Tensor, **given: Any) -> torch.Tensor:
        calls.append(given)
        if given["out_dtype"] != torch.bfloat16:
            raise RuntimeError("only bfloat16 for scales of rows")
        if given["bias"] is not None:
            return torch.zeros(rows.shape[0], columns.shape[1], dtype=torch.bfloat16)  # wrong, without an error
        return reference(rows, columns, **given)

    products = Float8Products(row_quantiser, card)
    expected = Float8Way(by_rows=True, out_dtype=torch.bfloat16, adds_bias=False, is_fast=True)
    assert products.way(CPU, E4M3, torch.float16) == expected
    num_calls = len(calls)
    assert products.way(CPU, E4M3, torch.float16) == expected and len(calls) == num_calls


def test_a_device_without_scales_of_rows_gets_those_of_tensors_and_one_without_products_none() -> None:
    def older(rows: torch.Tensor, columns: torch.Tensor, **given: Any) -> torch.Tensor:
        if given["scale_a"].ndim:
            raise NotImplementedError
        return reference(rows, columns, **given)

    class CompilationError(Exception):
        """Stands for Triton's, which is no RuntimeError."""

    def none(*_: Any, **__: Any) -> torch.Tensor:
        raise CompilationError("type fp8e4nv not supported in this architecture")

    way = Float8Products(row_quantiser, older).way(CPU, E4M3, torch.bfloat16)
    assert way is not None and not way.by_rows and way.out_dtype == torch.bfloat16
    assert Float8Products(row_quantiser, none).way(CPU, E4M3, torch.bfloat16) is None


def test_weights_with_a_scale_for_each_row_are_closer_than_with_one() -> None:
    weight = drawn(0, 64, 128)
    weight[::2] *= 0.001
    rows = quantise_rows(weight, E4M3)
    assert relative_error(rows.codes.float()[::2] * rows.scales[::2], weight[::2]) < 0.03


@pytest.mark.slow  # torch's fake tensors take seconds to import
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_calls_on_a_card_pass_the_checks_that_torch_makes_without_one(dtype: torch.dtype) -> None:
    """Checks of shapes, layouts and types of rows, columns and scales, by tensors of CUDA that have no memory."""
    products = Float8Products(lambda device: quantise_rows)
    with FakeTensorMode():
        x, bias = torch.empty(5, 96, dtype=dtype, device="cuda"), torch.empty(48, dtype=dtype, device="cuda")
        weight = torch.empty(48, 96, device="cuda").to(E4M3)
        for way in ways_of(dtype):
            scales = torch.empty((1, 48) if way.by_rows else (), device="cuda")
            found = products.multiply(x, weight, scales, bias, way)
            assert found.shape == (5, 48) and found.dtype == dtype and found.device.type == "cuda"
        with pytest.raises(RuntimeError):
            products.multiply(x[:, :90], weight[:, :90].contiguous(), scales, None, way)
        blocks = quantise_mxfp8(torch.empty(64, 128, device="cuda"))
        rows = torch.empty(40, 128, dtype=dtype, device="cuda")
        assert BlockScaledProducts().multiply(rows, blocks, None).shape == (40, 64)
