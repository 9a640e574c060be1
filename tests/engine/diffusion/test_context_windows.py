"""Schedules of windows over a long batch, which cover it, and noise that repeats from window to window."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.diffusion.context_windows import SCHEDULES, WindowPlan, shuffled_noise

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


def test_shuffled_noise_repeats_the_stretch_a_window_before_in_another_order() -> None:
    noise = torch.randn(1, 4, 11, 2, 2, generator=torch.Generator().manual_seed(0))
    shuffled = shuffled_noise(noise, 2, PLAN, seed=7)
    assert torch.equal(shuffled[:, :, :4], noise[:, :, :4])
    for start in (4, 6, 8):  # stretches of two; the first ones repeat what the window before has
        found = {tuple(frame.flatten().tolist()) for frame in shuffled[:, :, start : start + 2].unbind(2)}
        assert found == {tuple(frame.flatten().tolist()) for frame in shuffled[:, :, start - 4 : start - 2].unbind(2)}
    assert torch.equal(shuffled, shuffled_noise(noise, 2, PLAN, seed=7))
    assert any(not torch.equal(shuffled, shuffled_noise(noise, 2, PLAN, seed=seed)) for seed in range(7))


def test_noise_of_one_window_or_without_an_end_of_overlap_stays() -> None:
    noise = torch.randn(4, 4, 2, 2)
    assert torch.equal(shuffled_noise(noise, 0, PLAN, seed=1), noise)
    assert torch.equal(shuffled_noise(noise, 0, WindowPlan(2, 2), seed=1), noise)
