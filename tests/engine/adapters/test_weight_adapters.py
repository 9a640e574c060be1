"""Each kind of weight adapter against what ComfyUI makes of it, and against its formula with plain matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.adapters.weight_adapters import (
    BoftAdapter,
    GloraAdapter,
    LohaAdapter,
    LokrAdapter,
    LoraAdapter,
    OftAdapter,
    WeightAdapter,
)
from darkroom.engine.memory.weight_patches import calculate_weight
from tests.engine.adapters.adapter_cases import REFERENCE, STRENGTHS, AdapterCase, cases


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32)


def _applied(adapter: WeightAdapter, weight: torch.Tensor, strength: float = 1.0) -> torch.Tensor:
    return adapter.calculate_weight(weight.clone(), "w", strength, 1.0, None, lambda difference: difference)


@pytest.fixture(scope="module")
def reference() -> dict[str, torch.Tensor]:
    return load_file(REFERENCE)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_changes_a_weight_as_comfyui_does(case: AdapterCase, reference: dict[str, torch.Tensor]) -> None:
    patches = lora_patches(case.make_lora(), {"x": "x.weight"})
    for strength in STRENGTHS:
        entry = (strength, patches["x.weight"], 1.0, None, None)
        changed = calculate_weight([entry], case.make_weight(), "x.weight")
        torch.testing.assert_close(changed, reference[f"{case.name}@{strength}"], rtol=1e-5, atol=1e-5)


def test_the_reference_holds_every_case() -> None:
    assert load_file(REFERENCE).keys() == {f"{case.name}@{strength}" for case in cases() for strength in STRENGTHS}


def test_lora_adds_the_product_scaled_by_alpha_over_rank_and_strength() -> None:
    weight, up, down = _random(6, 5), _random(6, 2), _random(2, 5)
    changed = _applied(LoraAdapter(up, down, alpha=1.0), weight, 0.5)
    torch.testing.assert_close(changed, weight + 0.5 * (1.0 / 2) * up @ down)


def test_lora_of_a_convolution_with_a_kernel_between_equals_three_convolutions() -> None:
    up, mid, down = _random(6, 2, 1, 1), _random(2, 2, 3, 3), _random(2, 5, 1, 1)
    difference = _applied(LoraAdapter(up, down, mid=mid), torch.zeros(6, 5, 3, 3))
    x = _random(1, 5, 8, 8)
    conv = torch.nn.functional.conv2d
    torch.testing.assert_close(conv(x, difference), conv(conv(conv(x, down), mid), up), rtol=1e-4, atol=1e-4)


def test_loha_adds_the_elementwise_product_of_two_products() -> None:
    a, b, c, d = _random(6, 2), _random(2, 5), _random(6, 3), _random(3, 5)
    changed = _applied(LohaAdapter(a, b, c, d, alpha=4.0), torch.zeros(6, 5))
    torch.testing.assert_close(changed, 4.0 / 2 * (a @ b) * (c @ d))


def test_lokr_adds_a_kronecker_product_and_scales_only_where_a_factor_is_of_low_rank() -> None:
    w1, w2, a, b = _random(2, 2), _random(3, 4), _random(3, 2), _random(2, 4)
    whole = _applied(LokrAdapter(w1, w2, alpha=8.0), torch.zeros(6, 8))
    torch.testing.assert_close(whole, torch.kron(w1, w2))
    low = _applied(LokrAdapter(w1, None, alpha=8.0, w2_a=a, w2_b=b), torch.zeros(6, 8))
    torch.testing.assert_close(low, 8.0 / 2 * torch.kron(w1, a @ b))


def test_glora_adds_a_product_with_the_weight() -> None:
    weight = _random(6, 5)
    a1, a2, b1, b2 = _random(5, 2), _random(2, 5), _random(6, 2), _random(2, 5)
    torch.testing.assert_close(_applied(GloraAdapter(a1, a2, b1, b2), weight), weight + weight @ a1 @ a2 + b1 @ b2)


def test_glora_of_a_square_weight_is_scaled_by_its_rank() -> None:
    weight = _random(6, 6)
    a1, a2, b1, b2 = _random(6, 2), _random(2, 6), _random(6, 2), _random(2, 6)
    changed = _applied(GloraAdapter(a1, a2, b1, b2, alpha=1.0), weight)
    torch.testing.assert_close(changed, weight + 0.5 * (weight @ a1 @ a2 + b1 @ b2))


@pytest.mark.parametrize("adapter", [OftAdapter(_random(2, 4, 4)), BoftAdapter(_random(2, 2, 4, 4), alpha=0.0)])
def test_orthogonal_adapters_turn_the_weight_without_changing_its_length(adapter: WeightAdapter) -> None:
    weight = _random(8, 5)
    turned = _applied(adapter, weight)
    assert not torch.allclose(turned, weight)
    torch.testing.assert_close(turned.norm(dim=0), weight.norm(dim=0), rtol=1e-4, atol=1e-4)


def test_a_dora_scale_sets_the_lengths_of_columns() -> None:
    weight, scale = _random(6, 5), torch.full((1, 5), 3.0)
    changed = _applied(LoraAdapter(_random(6, 2), _random(2, 5), dora_scale=scale), weight)
    torch.testing.assert_close(changed.norm(dim=0), torch.full((5,), 3.0), rtol=1e-3, atol=1e-3)


def test_an_adapter_that_does_not_fit_leaves_the_weight_alone(caplog: pytest.LogCaptureFixture) -> None:
    weight = _random(6, 5)
    unchanged: Any = _applied(LoraAdapter(_random(7, 2), _random(2, 5)), weight)
    assert torch.equal(unchanged, weight)
    assert "does not fit" in caplog.text


def test_a_dora_scale_that_does_not_fit_leaves_the_weight_alone(caplog: pytest.LogCaptureFixture) -> None:
    weight = _random(6, 5)
    adapter = LoraAdapter(_random(6, 2), _random(2, 5), dora_scale=torch.ones(4, 1))
    assert torch.equal(_applied(adapter, weight), weight)
    assert "does not fit" in caplog.text


def test_a_reshaped_weight_is_padded_with_zeros_before_it_is_changed() -> None:
    weight, up, down = _random(6, 5), _random(6, 2), _random(2, 7)
    changed = _applied(LoraAdapter(up, down, reshape=[6, 7]), weight)
    torch.testing.assert_close(changed, torch.nn.functional.pad(weight, (0, 2)) + up @ down)
