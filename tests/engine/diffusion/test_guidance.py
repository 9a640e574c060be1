"""Guidance: conditions of both sides in batches, averaged by weight, area and mask, then scaled apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.conditions import Condition, ConstantInput, RegularInput
from darkroom.engine.diffusion.guidance import FEATHER_CELLS, calc_cond_batch, cfg_function, sampling_function

X = torch.randn(1, 2, 16, 24, generator=torch.Generator().manual_seed(3))  # [B, C, h, w]
SIGMA = torch.tensor([4.0])


class Model:
    """A model that predicts the constant of each condition's `value`, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], list[int]]] = []

    def apply_model(self, x: torch.Tensor, sigma: torch.Tensor, **inputs: Any) -> torch.Tensor:
        self.calls.append((tuple(x.shape), inputs["transformer_options"]["cond_or_uncond"]))
        value: torch.Tensor = inputs["value"]
        return value.view(-1, 1, 1, 1).expand_as(x).clone()


def predicts(value: float, **options: Any) -> Condition:
    return {"model_conds": {"value": RegularInput(torch.tensor([value]))}, **options}


def average(conditions: Sequence[Condition], model: Model | None = None) -> torch.Tensor:
    (found,) = calc_cond_batch(model or Model(), [conditions], X, SIGMA, {})
    return found


def test_conditions_are_averaged_by_strength() -> None:
    found = average([predicts(2.0, strength=3.0), predicts(10.0, strength=1.0)])
    torch.testing.assert_close(found, torch.full_like(X, (2 * 3 + 10 * 1) / 4))


def test_the_strength_of_a_single_condition_has_no_effect() -> None:
    torch.testing.assert_close(average([predicts(2.0, strength=0.3)]), torch.full_like(X, 2.0))


def test_no_condition_gives_zeros() -> None:
    assert not average([]).any()
    assert not calc_cond_batch(Model(), [None], X, SIGMA, {})[0].any()


def test_a_mask_weighs_cell_by_cell() -> None:
    mask = torch.linspace(0, 1, 24).expand(1, 16, 24)
    found = average([predicts(1.0), predicts(5.0, mask=mask, mask_strength=0.5, strength=2.0)])
    share = mask / (1 + mask)
    torch.testing.assert_close(found, (1 - share + 5 * share).unsqueeze(1).expand_as(X))


def test_an_area_is_computed_alone_and_covers_its_cells() -> None:
    model = Model()
    found = average([predicts(7.0, area=(8, 12, 0, 0))], model)
    assert model.calls == [((1, 2, 8, 12), [0])]
    torch.testing.assert_close(found[:, :, :8, :12], torch.full((1, 2, 8, 12), 7.0))
    assert not found[:, :, 8:].any() and not found[:, :, :, 12:].any()


def test_edges_of_an_area_fade_where_they_are_not_the_images() -> None:
    """From the edge inwards the weight rises by even steps, over a quarter of the area and at most 8 cells."""
    found = average([predicts(0.0), predicts(1.0, area=(16, 12, 0, 12))])
    share = found[0, 0, 5]  # one row [24]
    width = min(FEATHER_CELLS, 12 // 4)
    weights = torch.tensor([*((cell + 1) / width for cell in range(width)), *[1.0] * (12 - width)])
    torch.testing.assert_close(share[12:], weights / (1 + weights))
    assert not share[:12].any()
    assert torch.equal(found[0, 0, 0], found[0, 0, 15])  # nothing fades at the upper and lower border


def test_an_area_that_leaves_the_image_is_cut() -> None:
    model = Model()
    average([predicts(1.0, area=(8, 12, 12, 20))], model)
    assert model.calls[0][0] == (1, 2, 4, 4)


@pytest.mark.parametrize(
    ("start", "end", "is_used"), [(5.0, 3.0, True), (4.0, 4.0, True), (3.9, 0.0, False), (9.0, 4.1, False)]
)
def test_a_condition_takes_part_within_its_noise_levels(start: float, end: float, is_used: bool) -> None:
    model = Model()
    average([predicts(1.0, timestep_start=start, timestep_end=end)], model)
    assert bool(model.calls) is is_used


def test_default_conditions_fill_what_the_others_leave() -> None:
    mask = torch.zeros(1, 16, 24)
    mask[..., :6] = 1.0
    mask[..., 6:12] = 0.25
    found = average([predicts(8.0, mask=mask), predicts(4.0, default=True)])
    expected = torch.tensor([*[8.0] * 6, *[8 * 0.25 + 4 * 0.75] * 6, *[4.0] * 12])
    torch.testing.assert_close(found, expected.expand_as(X))


def test_conditions_of_both_sides_run_in_one_batch_when_they_fit() -> None:
    model = Model()
    positive, negative = calc_cond_batch(model, [[predicts(3.0)], [predicts(-1.0)]], X, SIGMA, {})
    assert [shape for shape, _ in model.calls] == [(2, 2, 16, 24)]
    assert sorted(model.calls[0][1]) == [0, 1]
    assert float(positive.mean()) == 3.0 and float(negative.mean()) == -1.0


def test_conditions_of_different_inputs_run_apart() -> None:
    other = {"model_conds": {"value": RegularInput(torch.tensor([1.0])), "kind": ConstantInput("b")}}
    model = Model()
    calc_cond_batch(model, [[predicts(3.0)], [other]], X, SIGMA, {})
    assert [shape[0] for shape, _ in model.calls] == [1, 1]


@pytest.mark.parametrize("scale", [0.0, 1.5, 7.5])
def test_guidance_goes_that_many_times_the_way_from_negative_to_positive(scale: float) -> None:
    found = sampling_function(Model(), X, SIGMA, [predicts(-1.0)], [predicts(3.0)], scale)
    torch.testing.assert_close(found, torch.full_like(X, -1.0 + scale * 4.0))


@pytest.mark.parametrize(("options", "sides"), [({}, [0]), ({"disable_cfg1_optimization": True}, [0, 1])])
def test_at_scale_one_the_negative_side_is_computed_only_on_request(options: dict[str, Any], sides: list[int]) -> None:
    model = Model()
    found = sampling_function(model, X, SIGMA, [predicts(-1.0)], [predicts(3.0)], 1.0, options)
    assert sorted(side for _, batch in model.calls for side in batch) == sides
    torch.testing.assert_close(found, torch.full_like(X, 3.0))


def test_a_nodes_guidance_sees_the_noise_and_gives_the_noise() -> None:
    """With the formula of plain guidance in the noise, the result is that of plain guidance in x0."""
    seen: dict[str, Any] = {}

    def in_noise(arguments: dict[str, Any]) -> torch.Tensor:
        seen.update(arguments)
        guided: torch.Tensor = arguments["uncond"] + (arguments["cond"] - arguments["uncond"]) * arguments["cond_scale"]
        return guided

    positive, negative = torch.full_like(X, 3.0), torch.full_like(X, -1.0)
    found = cfg_function(None, positive, negative, 5.0, X, SIGMA, {"sampler_cfg_function": in_noise})
    torch.testing.assert_close(found, cfg_function(None, positive, negative, 5.0, X, SIGMA), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen["cond"], X - 3.0)
    assert seen["cond_denoised"] is positive and seen["sigma"] is SIGMA


def test_functions_before_and_after_guidance_follow_each_other() -> None:
    options = {
        "sampler_pre_cfg_function": [lambda given: [item * 2 for item in given["conds_out"]]],
        "sampler_post_cfg_function": [lambda given: given["denoised"] + 1, lambda given: given["denoised"] * 10],
    }
    found = sampling_function(Model(), X, SIGMA, [predicts(-1.0)], [predicts(3.0)], 2.0, options)
    torch.testing.assert_close(found, torch.full_like(X, ((-2 + 2.0 * 8) + 1) * 10))


def test_a_wrapper_calls_the_model_in_its_place() -> None:
    def doubled(apply_model: Any, call: dict[str, Any]) -> torch.Tensor:
        assert call["cond_or_uncond"] == [0]
        result: torch.Tensor = apply_model(call["input"], call["timestep"], **call["c"])
        return result * 2

    (found,) = calc_cond_batch(Model(), [[predicts(3.0)]], X, SIGMA, {"model_function_wrapper": doubled})
    torch.testing.assert_close(found, torch.full_like(X, 6.0))
