"""Linear layers in float8 and int8: near the plain ones, and only where that is faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.layers.basic import Linear
from darkroom.engine.tuning.products.times import ProductTimes
from darkroom.engine.tuning.strategies.low_precision import EightBitLinear, Fp8Linear, Int8Linear
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse


def faster_products() -> ProductTimes:
    """Times of products, which are asked for first, that are half of those of the plain way."""
    turns = itertools.cycle((1.0, 2.0))
    return ProductTimes(lambda work, rows: next(turns))


def slower_products() -> ProductTimes:
    return ProductTimes(lambda work, rows: 1.0)


def layer(outputs: int = 320, inputs: int = 256, dtype: torch.dtype = torch.bfloat16) -> Linear:
    torch.manual_seed(0)
    return Linear(inputs, outputs, dtype=dtype).requires_grad_(False)


def forward_of(strategy: EightBitLinear, plain: Linear) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the function that the strategy gives to a network of one layer; None where it leaves it alone."""
    model = torch.nn.Module()
    model.diffusion_model = torch.nn.Sequential(plain)
    model.compute_dtype = plain.weight.dtype  # type: ignore[assignment]
    undo = strategy.apply(SamplingUse(None, model, {}))
    found: Callable[[torch.Tensor], torch.Tensor] | None = vars(plain).get("forward")
    undo()
    assert "forward" not in vars(plain)
    return found


@pytest.mark.parametrize(
    ("strategy", "dtype", "most"),
    [
        (Fp8Linear(times=faster_products()), torch.bfloat16, 0.05),
        (Fp8Linear(times=faster_products()), torch.float16, 0.05),
        (Int8Linear(times=faster_products()), torch.bfloat16, 0.02),
        (Int8Linear(times=faster_products()), torch.float32, 0.02),
    ],
)
def test_a_product_in_eight_bits_keeps_two_digits(strategy: EightBitLinear, dtype: torch.dtype, most: float) -> None:
    plain = layer(dtype=dtype)
    assert strategy.takes(plain)
    forward = forward_of(strategy, plain)
    if forward is None:
        pytest.skip("this processor multiplies no float8")
    x = torch.randn(2, 5, 256).to(dtype)
    found = forward(x)
    assert found.shape == (2, 5, 320) and found.dtype == dtype
    assert 0.0 < relative_error(found.double(), plain.double()(x.double())) < most


def test_a_layer_of_which_the_product_is_slower_stays_as_it_is() -> None:
    for strategy in (Fp8Linear(times=slower_products()), Int8Linear(times=slower_products())):
        assert forward_of(strategy, layer()) is None


def test_only_wide_layers_whose_sides_the_kernels_accept_are_taken() -> None:
    assert not Fp8Linear().takes(layer(250)) and not Int8Linear().takes(layer(250)), "narrow"
    assert not Fp8Linear().takes(layer(264)) and Int8Linear().takes(layer(264)), "sixteen and eight columns"
    assert not Fp8Linear().takes(layer(dtype=torch.float32)) and Int8Linear().takes(layer(dtype=torch.float32))


def test_inputs_of_another_type_take_the_plain_path() -> None:
    plain = layer(dtype=torch.float32)
    forward = forward_of(Int8Linear(times=faster_products()), plain)
    assert forward is not None
    with pytest.raises(RuntimeError):
        plain(torch.zeros(3, 256, dtype=torch.float64))
    with pytest.raises(RuntimeError):
        forward(torch.zeros(3, 256, dtype=torch.float64))
    assert forward(torch.zeros(0, 256)).shape == (0, 320)


def test_cards_before_the_types_are_told_so() -> None:
    cards = {"V100": (7, 0), "T4": (7, 5), "A100": (8, 0), "L4": (8, 9), "H100": (9, 0)}
    machines = {name: MachineFacts("cuda", name, capability) for name, capability in cards.items()}
    assert [name for name, machine in machines.items() if Fp8Linear().missing(machine) is None] == ["L4", "H100"]
    assert [name for name, machine in machines.items() if Int8Linear().missing(machine)] == ["V100"]
