"""Levels of the host: what is known of those on a device, and where the device has to be asked.

The meta device stands for one: nothing can read its numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from darkroom.engine.diffusion.host_levels import brought, divisor, of_batch, on_host, repeated
from darkroom.engine.diffusion.model_sampling import EpsDiscrete

DEVICE = torch.device("meta")
LEVELS = torch.tensor([3.0, 2.0, 0.0])


def test_levels_that_come_from_the_host_stay_known_there() -> None:
    moved = brought(LEVELS, DEVICE)
    assert moved.device == DEVICE
    assert torch.equal(on_host(moved), LEVELS)
    assert brought(moved, DEVICE) is moved


def test_a_level_of_a_batch_is_known_and_stays_so_for_several_conditions() -> None:
    levels = of_batch(LEVELS[1], torch.ones(2, device=DEVICE))
    assert levels.device == DEVICE
    assert on_host(levels).tolist() == [2.0, 2.0]
    assert on_host(repeated(levels, 2)).tolist() == [2.0] * 4


def test_levels_on_the_host_are_their_own() -> None:
    assert on_host(LEVELS) is LEVELS
    assert brought(LEVELS, torch.device("cpu")) is LEVELS
    assert divisor(LEVELS[0], LEVELS) is not None


def times_two_from_the_second(levels: torch.Tensor) -> torch.Tensor:
    levels[1:] *= 2
    return levels


@pytest.mark.parametrize("is_run", [False, True], ids=["", "inference mode"])
@pytest.mark.parametrize(
    "change",
    [lambda levels: levels.mul_(2), times_two_from_the_second, lambda levels: levels * 2],
    ids=["in place", "part in place", "anew"],
)
def test_the_device_is_asked_for_levels_that_were_changed(
    change: Callable[[torch.Tensor], torch.Tensor], is_run: bool
) -> None:
    with torch.inference_mode(is_run):
        ones = torch.ones(2, device=DEVICE)
        for levels in (
            brought(LEVELS.clone(), DEVICE),
            of_batch(LEVELS[1].clone(), ones),
            repeated(of_batch(LEVELS[1].clone(), ones), 2),
        ):
            on_host(levels)
            changed = change(levels)
            with pytest.raises(NotImplementedError, match="meta"):
                on_host(changed)


def test_a_divisor_is_made_on_the_device_without_a_copy() -> None:
    x = torch.zeros(2, device=DEVICE)
    made = divisor(LEVELS[0], x)
    assert (made.device, made.shape, made.dtype) == (DEVICE, torch.Size(()), torch.float32)
    assert divisor(made, x) is made


def test_a_table_of_timesteps_is_kept_where_it_is_asked_for() -> None:
    schedule = EpsDiscrete()
    sigma = torch.ones(2, device=DEVICE)
    assert schedule.timestep(sigma).device == DEVICE
    copy = schedule._log_sigmas_on(DEVICE)
    assert copy is schedule._log_sigmas_on(DEVICE)
    schedule.set_sigmas(torch.linspace(1.0, 2.0, 10))
    assert schedule._log_sigmas_on(DEVICE).shape == (10,)
    assert schedule._log_sigmas_on(torch.device("cpu")) is schedule.log_sigmas
