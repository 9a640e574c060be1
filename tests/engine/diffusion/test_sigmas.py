"""Schedules of noise levels agree with their formulas, written down a second time in plain float arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch

from darkroom.engine.diffusion import sigmas
from darkroom.engine.diffusion.model_sampling import ContinuousEdmSchedule, EpsDiscrete

STEPS = (1, 2, 3, 7, 20, 33)
LOW, HIGH = 0.0291675, 14.614642
NUM_TRAINED = 1000


@cache
def trained() -> tuple[float, ...]:
    """Rising noise levels of Stable Diffusion: betas whose roots are evenly spaced from 0.00085 to 0.012."""
    first, last = math.sqrt(0.00085), math.sqrt(0.012)
    kept, levels = 1.0, []
    for step in range(NUM_TRAINED):
        kept *= 1 - (first + (last - first) * step / (NUM_TRAINED - 1)) ** 2
        levels.append(math.sqrt((1 - kept) / kept))
    return tuple(levels)


def between(timestep: float) -> float:
    """Level at a fractional timestep: linear in the logarithm."""
    below = min(int(timestep), NUM_TRAINED - 2)
    share = timestep - below
    return math.exp((1 - share) * math.log(trained()[below]) + share * math.log(trained()[below + 1]))


def shares(count: int) -> list[float]:
    """Return so many even shares from 0 to 1; one alone is 0."""
    return [index / max(count - 1, 1) for index in range(count)]


def assert_levels(found: torch.Tensor, expected: Sequence[float], tolerance: float = 2e-4) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor(expected), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("steps", STEPS)
def test_karras_levels_are_even_in_their_seventh_root(steps: int) -> None:
    roots = [HIGH ** (1 / 7) + share * (LOW ** (1 / 7) - HIGH ** (1 / 7)) for share in shares(steps)]
    assert_levels(sigmas.karras(steps, LOW, HIGH), [*(root**7 for root in roots), 0.0])


@pytest.mark.parametrize("steps", STEPS)
def test_exponential_levels_have_one_ratio(steps: int) -> None:
    ratio = (LOW / HIGH) ** (1 / max(steps - 1, 1))
    assert_levels(sigmas.exponential(steps, LOW, HIGH), [*(HIGH * ratio**index for index in range(steps)), 0.0])


@pytest.mark.parametrize("rho", [0.5, 1.0, 3.0])
def test_polyexponential_levels_are_a_power_in_the_logarithm(rho: float) -> None:
    logs = [(1 - share) ** rho * math.log(HIGH / LOW) + math.log(LOW) for share in shares(9)]
    assert_levels(sigmas.polyexponential(9, LOW, HIGH, rho), [*map(math.exp, logs), 0.0])


def test_variance_preserving_levels_are_those_of_the_sde() -> None:
    times = [1 + share * (1e-3 - 1) for share in shares(12)]
    expected = [math.sqrt(math.exp(19.9 * time**2 / 2 + 0.1 * time) - 1) for time in times]
    assert_levels(sigmas.variance_preserving(12), [*expected, 0.0])


def test_laplace_levels_are_quantiles_of_the_distribution() -> None:
    """The density is symmetric in log sigma around `mu`: a quarter of the mass lies below `mu - beta * ln 2`."""
    found = sigmas.laplace(5, 0.01, 100.0, mu=0.5, beta=0.7)
    quartiles = [math.exp(0.5 + 0.7 * math.log(2)), math.exp(0.5), math.exp(0.5 - 0.7 * math.log(2))]
    torch.testing.assert_close(found[1:4], torch.tensor(quartiles), rtol=1e-3, atol=0)
    assert found.min() >= 0.01 and found.max() <= 100.0


@pytest.mark.parametrize("steps", STEPS)
def test_kl_optimal_levels_are_even_in_their_arc_tangent(steps: int) -> None:
    angles = [share * math.atan(LOW) + (1 - share) * math.atan(HIGH) for share in shares(steps)]
    assert_levels(sigmas.kl_optimal(steps, LOW, HIGH), [*map(math.tan, angles), 0.0])


@pytest.mark.parametrize("steps", STEPS)
def test_simple_levels_are_every_nth_trained_one_from_the_top(steps: int) -> None:
    expected = [trained()[NUM_TRAINED - 1 - int(index * NUM_TRAINED / steps)] for index in range(steps)]
    assert_levels(sigmas.simple(EpsDiscrete(), steps), [*expected, 0.0])


@pytest.mark.parametrize("steps", STEPS)
def test_ddim_levels_are_a_stride_apart_from_the_second(steps: int) -> None:
    rising = trained()[1 :: NUM_TRAINED // steps]
    assert_levels(sigmas.ddim_uniform(EpsDiscrete(), steps), [*reversed(rising), 0.0])


@pytest.mark.parametrize("steps", STEPS)
def test_normal_levels_are_even_in_timesteps(steps: int) -> None:
    timesteps = [(1 - share) * (NUM_TRAINED - 1) for share in shares(steps)]
    assert_levels(sigmas.normal(EpsDiscrete(), steps), [*map(between, timesteps), 0.0])


@pytest.mark.parametrize("steps", STEPS)
def test_sgm_uniform_levels_leave_out_the_last_timestep(steps: int) -> None:
    timesteps = [(NUM_TRAINED - 1) * (1 - index / steps) for index in range(steps)]
    assert_levels(sigmas.sgm_uniform(EpsDiscrete(), steps), [*map(between, timesteps), 0.0])


@pytest.mark.parametrize("steps", [2, 5, 20, 33])
def test_linear_quadratic_levels_join_smoothly(steps: int) -> None:
    """A line up to the threshold at half of the steps, then a parabola of the same value and slope that ends at 1."""
    half = steps // 2
    slope = 0.025 / half
    rest = steps - half
    curvature = (1 - 0.025 - slope * rest) / rest**2
    done = [slope * index for index in range(half)]
    done += [0.025 + slope * index + curvature * index**2 for index in range(rest)]
    expected = [trained()[-1] * (1 - share) for share in done]
    assert_levels(sigmas.linear_quadratic(EpsDiscrete(), steps), [*expected, 0.0])


def test_one_step_of_linear_quadratic_is_the_whole_way() -> None:
    assert_levels(sigmas.linear_quadratic(EpsDiscrete(), 1), [trained()[-1], 0.0])


@pytest.mark.parametrize("steps", [1, 2, 7, 20])
def test_beta_levels_are_even_in_the_mass_of_a_beta_distribution(steps: int) -> None:
    """Inverted here by bisecting the distribution's integral. Its exponents of -0.4 are removed by u = x^0.6."""
    timesteps = [round(_beta_quantile(1 - index / steps) * (NUM_TRAINED - 1)) for index in range(steps)]
    expected = [trained()[timestep] for timestep in dict.fromkeys(timesteps)]
    found = sigmas.beta(EpsDiscrete(), steps)
    assert len(found) == len(expected) + 1
    assert_levels(found, [*expected, 0.0], tolerance=1.5e-2)  # a timestep at which rounding may go either way


@cache
def _beta_half() -> tuple[float, ...]:
    """Running integral of t^-0.4 (1 - t)^-0.4 from 0 to 1/2, over even steps of u = t^0.6, by the midpoint rule."""
    count, end = 20_000, 0.5**0.6
    total, running = 0.0, [0.0]
    for index in range(count):
        u = (index + 0.5) * end / count
        total += (1 - u ** (1 / 0.6)) ** -0.4 / 0.6 * end / count
        running.append(total)
    return tuple(running)


def _beta_quantile(mass: float) -> float:
    if mass > 0.5:
        return 1 - _beta_quantile(1 - mass)
    running = _beta_half()
    wanted = mass * 2 * running[-1]
    place = next(index for index, value in enumerate(running) if value >= wanted * (1 - 1e-12))
    return float((place * 0.5**0.6 / (len(running) - 1)) ** (1 / 0.6))


@pytest.mark.parametrize(
    ("steps", "denoise", "timesteps"), [(1, 1.0, [999]), (3, 1.0, [999, 899, 799]), (2, 0.5, [499, 399])]
)
def test_turbo_levels_are_those_the_student_was_trained_on(steps: int, denoise: float, timesteps: list[int]) -> None:
    assert_levels(sigmas.turbo(EpsDiscrete(), steps, denoise), [*(trained()[item] for item in timesteps), 0.0])


@pytest.mark.parametrize("schedule", [sigmas.normal, sigmas.sgm_uniform])
def test_a_continuous_model_is_scheduled_in_its_own_timesteps(
    schedule: Callable[[sigmas.Levels, int], torch.Tensor],
) -> None:
    """The timestep of EDM is a quarter of log sigma: levels even in it have one ratio."""
    levels = schedule(ContinuousEdmSchedule(), 8)[:-1]
    ratios = levels[1:] / levels[:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios), rtol=1e-4, atol=0)
    assert float(levels[0]) == pytest.approx(120.0, rel=1e-4)
