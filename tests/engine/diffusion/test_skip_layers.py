"""Guidance away from skipped blocks, between two noise levels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion import skip_layers
from darkroom.engine.diffusion.skip_layers import SkippedLayers, layer_numbers

X = torch.zeros(1, 4, 2, 2)
LAYERS = SkippedLayers(double=(1,), single=(0, 2), highest=8.0, lowest=2.0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The sides and replaced blocks of every call of the network; it gives the number of replaced blocks."""
    found: list[tuple[Any, Any]] = []

    def calc(model: Any, conds: Any, x: torch.Tensor, sigma: torch.Tensor, options: Any) -> list[torch.Tensor]:
        blocks = options.get("transformer_options", {}).get("patches_replace", {}).get("dit", {})
        found.append((conds, sorted(blocks)))
        return [torch.full_like(x, float(len(blocks))) for _ in conds]

    monkeypatch.setattr(skip_layers, "calc_cond_batch", calc)
    return found


def arguments(sigma: float, **further: Any) -> dict[str, Any]:
    positive = torch.randn(1, 4, 2, 2, generator=torch.Generator().manual_seed(0))
    return {
        "denoised": positive * 2, "cond_denoised": positive, "cond": ["c"], "conds": [["c"], ["u"]], "input": X,
        "sigma": torch.tensor([sigma]), "model": None, "model_options": {}, **further,
    }  # fmt: skip


@pytest.mark.parametrize(("text", "numbers"), [("7, 8, 9", (7, 8, 9)), ("1;2 x3", (1, 2, 3)), ("", ()), ("12", (12,))])
def test_layers_are_the_numbers_in_a_text(text: str, numbers: tuple[int, ...]) -> None:
    assert layer_numbers(text) == numbers


def test_the_result_moves_away_from_the_skipped_one(calls: list[Any]) -> None:
    args = arguments(5.0)
    found = LAYERS.guide(args, 0.5, 0.0)
    torch.testing.assert_close(found, args["denoised"] + 0.5 * (args["cond_denoised"] - 3.0))
    assert calls == [([["c"]], [("double_block", 1), ("single_block", 0), ("single_block", 2)])]


def test_rescaling_brings_back_the_deviation_of_the_positive_side(calls: list[Any]) -> None:
    args = arguments(5.0)
    assert float(LAYERS.guide(args, 0.5, 1.0).std()) == pytest.approx(float(args["cond_denoised"].std()))
    half = LAYERS.guide(args, 0.5, 0.5).std()
    plain = LAYERS.guide(args, 0.5, 0.0).std()
    assert float(half) == pytest.approx((float(plain) + float(args["cond_denoised"].std())) / 2)


@pytest.mark.parametrize("sigma", [8.1, 1.9])
def test_outside_its_noise_levels_nothing_is_skipped(calls: list[Any], sigma: float) -> None:
    args = arguments(sigma)
    assert LAYERS.guide(args, 0.5, 0.0) is args["denoised"] and not calls
    LAYERS.sides(args)
    assert calls == [([["c"], ["u"]], [])]


def test_only_the_negative_side_skips_blocks(calls: list[Any]) -> None:
    positive, negative = LAYERS.sides(arguments(5.0))
    assert not positive.any() and negative.eq(3.0).all()
    assert [sides for sides, _ in calls] == [[["c"], None], [None, ["u"]]]
    LAYERS.sides(arguments(5.0, conds=[["c"], None]))
    assert calls[2] == ([["c"], None], [])
