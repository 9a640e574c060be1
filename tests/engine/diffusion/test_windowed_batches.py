"""Evaluation in windows: it covers a long batch, and changes nothing for a model that sees each item alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.conditions import ConstantInput, NoiseShapedInput, RegularInput
from darkroom.engine.diffusion.context_windows import FUSE_WEIGHTS, SCHEDULES, WindowPlan
from darkroom.engine.diffusion.latent_window import LatentWindow, cut_input
from darkroom.engine.diffusion.nested_latent import packed, unpacked
from darkroom.engine.diffusion.windowed_batches import ContextWindows
from darkroom.engine.diffusion.windowed_streams import same_times

PLAN = WindowPlan(length=4, overlap=2, stride=2)


@pytest.mark.parametrize("fuse_method", FUSE_WEIGHTS)
def test_a_model_that_sees_each_item_alone_gives_the_same_with_and_without_windows(fuse_method: str) -> None:
    handler = ContextWindows("standard_static", fuse_method, PLAN)
    x = torch.randn(9, 4, 3, 3, generator=torch.manual_seed(1))
    seen: list[int] = []

    def evaluate(model: Any, conds: Any, part: torch.Tensor, sigma: torch.Tensor, options: Any) -> list[torch.Tensor]:
        seen.append(len(part))
        assert len(sigma) == len(part) and len(conds[0][0]["mask"]) == len(part)
        return [part * 2, part * 3]

    options = {"transformer_options": {"sample_sigmas": torch.tensor([5.0, 2.0, 0.0])}}
    assert handler.should_use_context(None, [], x, torch.ones(9), options)
    conds = [[{"mask": torch.ones(9, 3, 3)}], None]
    double, triple = handler.execute(evaluate, None, conds, x, torch.full([9], 2.0), options)
    assert seen == [4, 5, 5, 5]  # all but the first with the item before
    assert torch.allclose(double, x * 2, atol=1e-5) and torch.allclose(triple, x * 3, atol=1e-5)


@pytest.mark.parametrize(("level", "step"), [(5.0, 0), (4.0, 0), (2.0001, 1), (1.0, 1), (9.0, 0)])
def test_a_level_between_the_steps_has_the_windows_of_the_step_before(level: float, step: int) -> None:
    handler = ContextWindows("looped_uniform", "flat", PLAN, causal_window_fix=False)
    x = torch.arange(9.0).view(9, 1, 1, 1)
    seen: list[list[int]] = []

    def evaluate(model: Any, conds: Any, part: torch.Tensor, sigma: torch.Tensor, options: Any) -> list[torch.Tensor]:
        seen.append(part.flatten().int().tolist())
        assert options["transformer_options"]["context_window"].index_list == seen[-1]
        return []

    options = {"transformer_options": {"sample_sigmas": torch.tensor([5.0, 2.0, 0.0])}}
    handler.execute(evaluate, None, [], x, torch.full([9], level), options)
    assert seen == SCHEDULES["looped_uniform"](9, PLAN, step)


def _parts(handler: ContextWindows, x: torch.Tensor, condition: dict[str, Any], model: Any = None) -> list[Any]:
    """Return the latent and the condition of each window."""
    found: list[Any] = []

    def evaluate(model: Any, conds: Any, part: torch.Tensor, sigma: torch.Tensor, options: Any) -> list[torch.Tensor]:
        found.append((part, conds[0]))
        return [part]

    options = {"transformer_options": {"sample_sigmas": torch.tensor([5.0, 0.0])}}
    handler.execute(evaluate, model, [[condition]], x, torch.full([1], 5.0), options)
    return found


def _frames(count: int) -> torch.Tensor:
    return torch.arange(float(count)).view(1, 1, count, 1, 1)


def test_inputs_of_the_network_are_cut_as_the_latent_is_and_keep_what_is_retained() -> None:
    handler = ContextWindows("standard_static", "flat", WindowPlan(3, 1), 2, cond_retained=(0,))
    inputs = {"c_concat": NoiseShapedInput(_frames(5) + 10), "text": RegularInput(torch.zeros(1, 7, 3))}
    (first, (one,)), (second, (two,)) = _parts(handler, _frames(5), {"model_conds": inputs, "mask": _frames(5)})
    assert first.flatten().tolist() == [0, 1, 2] and second.flatten().tolist() == [1, 2, 3, 4]
    assert one["model_conds"]["c_concat"].cond.flatten().tolist() == [10, 11, 12]
    assert two["model_conds"]["c_concat"].cond.flatten().tolist() == [10, 12, 13, 14]  # the first frame, retained
    assert two["mask"].flatten().tolist() == [1, 2, 3, 4]
    assert two["model_conds"]["text"] is inputs["text"]


def test_a_latent_keeps_the_positions_that_are_retained_of_it() -> None:
    handler = ContextWindows("standard_static", "flat", WindowPlan(3, 1), 2, latent_retained=(0, 2, 7))
    _, (second, _) = _parts(handler, _frames(5), {"model_conds": {}})
    assert second.flatten().tolist() == [0, 2, 2, 4]


def test_a_family_cuts_its_own_inputs() -> None:
    class Network:
        current_patcher = None

        def cut_for_window(self, name: str, given: Any, window: LatentWindow, retained: Any) -> Any:
            return cut_input(given, window, 1, per_place=2, num_before=1) if name == "faces" else None

    handler = ContextWindows("standard_static", "flat", WindowPlan(3, 1), 2)
    inputs = {"faces": RegularInput(torch.arange(8).view(1, 8))}  # two for each frame but the first
    parts = _parts(handler, _frames(5), {"model_conds": inputs}, Network())
    faces = [side[0]["model_conds"]["faces"].cond.flatten().tolist() for _, side in parts]
    assert faces == [[0, 1, 2, 3], [2, 3, 4, 5, 6, 7]]  # the frame before takes the place that has none


def test_each_window_gets_the_condition_of_its_region() -> None:
    handler = ContextWindows("batched", "flat", WindowPlan(2, 0), split_conds_to_windows=True)
    seen: list[list[list[str]]] = []

    def evaluate(model: Any, conds: Any, part: torch.Tensor, sigma: torch.Tensor, options: Any) -> list[torch.Tensor]:
        seen.append([[item["name"] for item in side] for side in conds])
        return [part, part]

    options = {"transformer_options": {"sample_sigmas": torch.tensor([5.0, 0.0])}}
    sides = [[{"name": "morning"}, {"name": "night"}], [{"name": "blurry"}]]
    handler.execute(evaluate, None, sides, torch.zeros(6, 1, 1, 1), torch.full([1], 5.0), options)
    assert seen == [[["morning"], ["blurry"]], [["morning"], ["blurry"]], [["night"], ["blurry"]]]


def test_memory_is_reckoned_for_one_window() -> None:
    assert ContextWindows("batched", "flat", PLAN, 2).shape_at_once((1, 16, 40, 8, 8)) == [1, 16, 5, 8, 8]


@pytest.mark.parametrize(
    ("schedule", "overlap", "dim", "message"),
    [
        ("standard_static", 4, 0, "context_overlap: .* got an overlap of 4 and a length of 4"),
        ("looped_uniform", 9, 2, "context_overlap: "),
        ("batched", 1, 1, "dim: .* got 1, expected one of 0, 2, 3, 4 for"),
        ("batched", 1, 5, "dim: .* got 5, expected one of 0, 2, 3, 4 for a latent of 5 dimensions"),
    ],
)
def test_windows_that_cannot_cover_a_latent_are_refused_before_its_first_step(
    schedule: str, overlap: int, dim: int, message: str
) -> None:
    handler = ContextWindows(schedule, "flat", WindowPlan(4, overlap), dim)
    with pytest.raises(ValueError, match=message):
        handler.should_use_context(None, [], torch.zeros(9, 16, 9, 8, 8), torch.ones(1), {})


def test_windows_that_are_not_needed_or_do_not_overlap_are_not_refused() -> None:
    for schedule, count, is_used in (("standard_static", 4, False), ("batched", 9, True)):
        handler = ContextWindows(schedule, "flat", WindowPlan(4, 4))
        assert handler.should_use_context(None, [], torch.zeros(count, 4, 8, 8), torch.ones(1), {}) is is_used


def test_further_streams_are_cut_at_the_same_times() -> None:
    assert same_times([2, 3], 5, 10) == [4, 5, 6, 7]
    assert same_times([0, 1, 2], 6, 3) == [0, 1]  # each once
    assert same_times([5], 6, 3) == [2]


def test_streams_are_evaluated_in_windows_and_blended_each() -> None:
    shapes = ((1, 2, 6, 1, 1), (1, 3, 12, 2))
    streams = [torch.randn(shape) for shape in shapes]
    windows = ContextWindows("standard_static", "pyramid", WindowPlan(3, 1), dim=2)
    conds: Any = [[{"model_conds": {"latent_shapes": ConstantInput(shapes)}}]]
    seen: list[Any] = []

    def evaluate(model: object, sides: Any, x: torch.Tensor, sigma: object, options: object) -> list[torch.Tensor]:
        own = sides[0][0]["model_conds"]["latent_shapes"].cond
        seen.append([shape[2] for shape in own])
        return [packed([2.0 * item for item in unpacked(x, own)])]

    levels = torch.tensor([1.0, 0.0])
    options: Any = {"transformer_options": {"sample_sigmas": levels}}
    (found,) = windows.execute(evaluate, object(), conds, packed(streams), levels[:1], options)
    for ours, given in zip(unpacked(found, shapes), streams, strict=True):
        assert torch.allclose(ours, 2.0 * given, atol=1e-6)
    assert seen == [[3, 6], [4, 6], [4, 6]]  # later windows have the frame before them
