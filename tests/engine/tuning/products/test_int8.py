"""Products in int8 by torch's own operation on this processor, and its rules on cards."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.tuning.products.fused import integer_scaler, row_quantiser
from darkroom.engine.tuning.products.int8 import LEAST_ROWS, Int8Products, multiplies_int8
from darkroom.engine.tuning.products.rows import quantise_rows


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 7, 40])
def test_a_product_is_that_of_the_unpacked_weight(dtype: torch.dtype, num_rows: int) -> None:
    x, bias, weight = (
        drawn(0, num_rows, 96).to(dtype),
        drawn(2, 48).to(dtype),
        quantise_rows(drawn(1, 48, 96), torch.int8),
    )
    products = Int8Products(row_quantiser, integer_scaler)
    for given in (bias, None):
        found = products.multiply(x, weight.codes, weight.scales.view(-1), given)
        exact = x.double() @ (weight.codes.double() * weight.scales).t() + (0.0 if given is None else given.double())
        assert found.dtype == dtype and relative_error(found.double(), exact) < 0.015  # half a step of 127 in a row


def test_sums_are_exact() -> None:
    x = torch.randint(-127, 128, (5, 4096), generator=torch.Generator().manual_seed(0)).float()
    x[:, 0] = 127.0  # so that every code is the number itself
    weight = torch.randint(-127, 128, (16, 4096), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    found = Int8Products(row_quantiser, integer_scaler).multiply(x, weight, torch.ones(16), None)
    assert torch.equal(found.double(), x.double() @ weight.double().t())


@pytest.mark.parametrize("num_rows", [1, LEAST_ROWS - 1, LEAST_ROWS, 100])
def test_few_rows_are_padded_for_a_card(num_rows: int) -> None:
    seen: list[int] = []

    def int_mm(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return torch._int_mm(rows, columns)

    x, weight = drawn(0, num_rows, 64), quantise_rows(drawn(1, 32, 64), torch.int8)
    plain = Int8Products(row_quantiser, integer_scaler)
    padded = Int8Products(row_quantiser, integer_scaler, int_mm, lambda device: LEAST_ROWS)
    found = [item.multiply(x, weight.codes, weight.scales.view(-1), None) for item in (plain, padded)]
    assert seen == [max(num_rows, LEAST_ROWS)] and torch.equal(*found)


def test_cards_and_processors_with_such_instructions_multiply_int8() -> None:
    assert multiplies_int8(torch.device("cuda:0")) and not multiplies_int8(torch.device("mps"))
    has_instructions = torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported()
    assert multiplies_int8(torch.device("cpu")) == has_instructions
