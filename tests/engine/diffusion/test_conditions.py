"""Conditions are located in the latent, timed in noise levels, and balanced between the sides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.conditions import (
    ConstantInput,
    CrossAttentionInput,
    ListInput,
    NoiseShapedInput,
    RegularInput,
    convert_conditioning,
    narrow_to_area,
    prepare_conditions,
    repeat_to_batch_size,
    spread_to_batch_size,
)

NOISE = torch.zeros(2, 4, 16, 24)  # [B, C, h, w]


class Model:
    """A model of one input; half of the way is sigma 5, the rest linear from 10 to 0."""

    model_sampling = SimpleNamespace(percent_to_sigma=lambda percent: 10.0 * (1.0 - percent))

    def extra_conds(self, **kwargs: Any) -> dict[str, Any]:
        return {"size": ConstantInput((kwargs["width"], kwargs["height"], kwargs["prompt_type"]))}


def prepared(positive: list[dict[str, Any]], negative: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    sides = {"positive": positive, "negative": negative or []}
    given = {side: [{"model_conds": {}, **item} for item in items] for side, items in sides.items()}
    return prepare_conditions(Model(), NOISE, given, torch.device("cpu"))


@pytest.mark.parametrize(("count", "wanted", "items"), [(3, 2, [0, 1]), (2, 5, [0, 1, 0, 1, 0]), (2, 2, [0, 1])])
def test_batches_are_repeated_in_turn(count: int, wanted: int, items: list[int]) -> None:
    assert repeat_to_batch_size(torch.arange(count), wanted).tolist() == items
    assert repeat_to_batch_size(torch.arange(count)[None], wanted, dim=1).tolist() == [items]


@pytest.mark.parametrize(
    ("count", "wanted", "items"), [(2, 4, [0, 0, 1, 1]), (5, 3, [0, 2, 4]), (3, 1, [0]), (2, 5, [0, 0, 1, 1, 1])]
)
def test_batches_are_spread_in_order(count: int, wanted: int, items: list[int]) -> None:
    assert spread_to_batch_size(torch.arange(count), wanted).tolist() == items


def test_an_area_is_a_view_of_its_cells() -> None:
    tensor = torch.arange(2 * 3 * 6 * 8.0).view(2, 3, 6, 8)
    view = narrow_to_area(tensor, (2, 3, 4, 5))
    assert torch.equal(view, tensor[:, :, 4:6, 5:8])
    view.zero_()
    assert not tensor[:, :, 4:6, 5:8].any()


def test_an_area_in_shares_becomes_cells() -> None:
    (found,) = prepared([{"area": ("percentage", 0.5, 0.25, 0.1, 0.5)}])["positive"]
    assert found["area"] == (8, 6, 2, 12)
    (found,) = prepared([{"area": ("percentage", 0.001, 1.0, 0.0, 0.0)}])["positive"]
    assert found["area"] == (1, 24, 0, 0)


def test_a_mask_is_scaled_to_the_latent() -> None:
    mask = torch.zeros(128, 192)  # pixels, [H, W]
    mask[:, 96:] = 1.0
    (found,) = prepared([{"mask": mask}])["positive"]
    assert found["mask"].shape == (1, 16, 24)
    assert torch.equal(found["mask"][0, 0], torch.cat([torch.zeros(12), torch.ones(12)]))


@pytest.mark.parametrize(
    ("rows", "columns", "area"),
    [((3, 14), (2, 20), (11, 18, 3, 2)), ((3, 5), (2, 4), (8, 8, 3, 2)), ((0, 0), (0, 0), (8, 8, 0, 0))],
)
def test_the_area_around_a_mask_is_at_least_eight_cells_a_side(
    rows: tuple[int, int], columns: tuple[int, int], area: tuple[int, ...]
) -> None:
    mask = torch.zeros(1, 16, 24)
    mask[:, slice(*rows), slice(*columns)] = 1.0
    (found,) = prepared([{"mask": mask, "set_area_to_bounds": True}])["positive"]
    assert found["area"] == area


def test_shares_of_the_way_become_noise_levels() -> None:
    (found,) = prepared([{"start_percent": 0.25, "end_percent": 0.75}])["positive"]
    assert (found["timestep_start"], found["timestep_end"]) == (7.5, 2.5)
    clip = {"clip_start_percent": 0.5, "clip_end_percent": 0.9, "start_percent": 0.25, "end_percent": 0.75}
    (found,) = prepared([clip])["positive"]
    assert (found["timestep_start"], found["timestep_end"]) == (5.0, 2.5)


def test_inputs_of_the_network_receive_the_size_in_pixels_and_the_side() -> None:
    found = prepared([{}], [{"width": 1000}])
    assert found["positive"][0]["model_conds"]["size"].cond == (192, 128, "positive")
    assert found["negative"][0]["model_conds"]["size"].cond == (1000, 128, "negative")


def test_inputs_of_the_network_are_brought_to_the_device_once() -> None:
    # Of the meta device, as nothing can be read there: only where each tensor is.
    given: dict[str, Any] = {
        "guidance": RegularInput(torch.ones(1)), "ref_latents": ListInput([torch.ones(1, 4, 2, 2)] * 2),
        "pair": ConstantInput((torch.ones(2), 3)), "frame_rate": ConstantInput(25.0),
    }  # fmt: skip
    sides = {"positive": [{"model_conds": given}]}
    found = prepare_conditions(Model(), NOISE, sides, torch.device("meta"))["positive"][0]["model_conds"]
    tensors = [found["guidance"].cond, *found["ref_latents"].cond, found["pair"].cond[0]]
    assert [item.device.type for item in tensors] == ["meta"] * 4
    assert type(found["guidance"]) is RegularInput and found["pair"].cond[1] == 3
    assert found["frame_rate"] is given["frame_rate"]
    assert given["guidance"].cond.device.type == "cpu"  # a node's own, which other runs read


def test_the_other_side_gets_a_condition_of_the_same_area_from_its_smallest_around_it() -> None:
    around = {"area": (12, 12, 0, 0), "model_conds": {"name": "around"}}
    closest = {"area": (8, 8, 2, 2), "model_conds": {"name": "closest"}}
    beside = {"area": (4, 4, 10, 10), "model_conds": {"name": "beside"}}
    found = prepared([{"area": (4, 4, 3, 3), "strength": 0.5}], [{}, around, closest, beside])["negative"]
    added = [item for item in found if item.get("area") == (4, 4, 3, 3)]
    assert [(item["model_conds"]["name"], item["strength"]) for item in added] == [("closest", 0.5)]


def test_nothing_is_added_where_the_other_side_has_that_area() -> None:
    area = {"area": (4, 4, 3, 3)}
    assert [len(items) for items in prepared([area], [{}, area]).values()] == [1, 2]


def test_a_control_of_the_positive_side_takes_part_in_plain_negatives_where_it_is_asked_to() -> None:
    control = SimpleNamespace(pre_run=lambda model, percent_to_sigma: None)
    both = prepared([{"control": control, "control_apply_to_uncond": True}], [{}, {"area": (8, 8, 0, 0)}])
    assert [item.get("control") is control for item in both["negative"]][:2] == [True, False]
    assert "control" not in prepared([{"control": control}], [{}])["negative"][0]


def test_conditioning_keeps_its_options_and_is_distinguished() -> None:
    tokens = torch.ones(1, 77, 8)
    first, second = convert_conditioning([(tokens, {"strength": 2.0}), (None, {})])
    assert first["cross_attn"] is tokens and first["strength"] == 2.0 and "cross_attn" not in second
    assert first["uuid"] != second["uuid"] and first["model_conds"] == {}


def test_tokens_of_different_lengths_are_repeated_to_their_common_multiple() -> None:
    short, long = torch.randn(2, 2, 3), torch.randn(2, 3, 3)
    joined = CrossAttentionInput(short).concat([CrossAttentionInput(long)])
    assert torch.equal(joined, torch.cat([short.repeat(1, 3, 1), long.repeat(1, 2, 1)]))


@pytest.mark.parametrize(
    ("other", "joins"), [((2, 77, 8), True), ((2, 308, 8), True), ((2, 385, 8), False), ((1, 77, 8), False)]
)
def test_tokens_join_unless_padding_costs_more_than_a_second_call(other: tuple[int, ...], joins: bool) -> None:
    assert CrossAttentionInput(torch.zeros(2, 77, 8)).can_concat(CrossAttentionInput(torch.zeros(other))) is joins


def test_repeating_tokens_leaves_attention_unchanged() -> None:
    query, tokens = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    repeated = tokens.repeat(1, 4, 1)
    torch.testing.assert_close(attend(query, repeated, repeated), attend(query, tokens, tokens))


def test_inputs_of_the_latents_shape_are_cut_with_it_and_others_are_not() -> None:
    data = torch.arange(16 * 24.0).view(1, 1, 16, 24)
    area = (2, 3, 4, 5)
    assert torch.equal(NoiseShapedInput(data).process_cond(2, area).cond, data[:, :, 4:6, 5:8].repeat(2, 1, 1, 1))
    assert RegularInput(data).process_cond(3, area).cond.shape == (3, 1, 16, 24)
    assert not RegularInput(data).can_concat(RegularInput(data[:, :, 1:]))
    assert ConstantInput(3).can_concat(ConstantInput(3)) and not ConstantInput(3).can_concat(ConstantInput(4))


def test_lists_of_tensors_join_item_by_item() -> None:
    first = ListInput([torch.zeros(1, 3, 2, 2), torch.zeros(1, 3, 4, 5)])
    second = ListInput([torch.ones(1, 3, 2, 2), torch.ones(1, 3, 4, 5)])
    assert first.can_concat(second) and not first.can_concat(ListInput(second.cond[:1]))
    joined = first.concat([second])
    assert [item.shape for item in joined] == [(2, 3, 2, 2), (2, 3, 4, 5)]
    assert [item.flatten(1).amax(1).tolist() for item in joined] == [[0.0, 1.0]] * 2
    assert [item.shape[0] for item in first.process_cond(3).cond] == [3, 3]
    assert first.size() == [1, 3, 24]
