"""Windows over a long batch: they cover it, and change nothing for a model that sees each item alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.context_windows import FUSE_WEIGHTS, SCHEDULES, ContextWindows, WindowPlan

PLAN = WindowPlan(length=4, overlap=2, stride=2)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("step", [0, 1, 5])
def test_every_place_is_in_a_window(schedule: str, step: int) -> None:
    plan = WindowPlan(4, 2, 2, is_closed=True)
    windows = SCHEDULES[schedule](11, plan, step)
    assert {place for window in windows for place in window} == set(range(11))


def test_static_windows_end_with_the_last_place() -> None:
    assert SCHEDULES["standard_static"](9, PLAN, 0) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [5, 6, 7, 8]]


def test_straight_uniform_windows_never_go_around_the_end() -> None:
    for step in range(8):
        windows = SCHEDULES["standard_uniform"](11, PLAN, step)
        assert all(window == sorted(window) for window in windows)
        assert len({tuple(window) for window in windows}) == len(windows)


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
    assert handler.should_use_context(None, None, x, torch.ones(9), options)
    conds = [[{"mask": torch.ones(9, 3, 3)}], None]
    double, triple = handler.execute(evaluate, None, conds, x, torch.full([9], 2.0), options)
    assert seen == [4, 4, 4, 4]
    assert torch.allclose(double, x * 2, atol=1e-5) and torch.allclose(triple, x * 3, atol=1e-5)


def test_a_level_between_the_steps_is_refused() -> None:
    handler = ContextWindows("batched", "flat", PLAN)
    options = {"transformer_options": {"sample_sigmas": torch.tensor([5.0, 0.0])}}
    with pytest.raises(ValueError, match="3 is none"):
        handler.execute(lambda *_: [], None, [], torch.zeros(9, 1, 1, 1), torch.full([9], 3.0), options)


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
