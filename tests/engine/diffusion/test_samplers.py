from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.diffusion.model_sampling import EpsDiscrete
from engine.diffusion.samplers import SAMPLER_FUNCTIONS, SAMPLER_NAMES, linear_multistep_coefficient
from engine.diffusion.sigmas import SCHEDULE_NAMES, SCHEDULES, calculate_sigmas

DETERMINISTIC = ("euler", "heun", "dpm_2", "lms", "dpmpp_2m", "ddim")
SIGMA_DATA = 0.7


def _gaussian_denoiser(x: torch.Tensor, sigma: torch.Tensor, **_: Any) -> torch.Tensor:
    """The exact denoiser of Gaussian data, for which the ODE has a closed solution."""
    variance = sigma.view(-1, 1, 1, 1) ** 2
    return x * SIGMA_DATA**2 / (variance + SIGMA_DATA**2)


def _solve(name: str, steps: int) -> float:
    sigmas = calculate_sigmas(EpsDiscrete(), "karras", steps)
    x = torch.full((1, 4, 2, 2), float(sigmas[0]))
    result = SAMPLER_FUNCTIONS[name](_gaussian_denoiser, x, sigmas, extra_args={"seed": 3})
    return float(result.mean())


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_samplers_reach_the_exact_solution(name: str) -> None:
    sigma = float(EpsDiscrete().sigma_max)
    exact = sigma * SIGMA_DATA / (sigma**2 + SIGMA_DATA**2) ** 0.5
    coarse, fine = abs(_solve(name, 20) - exact), abs(_solve(name, 160) - exact)
    assert fine < 0.02
    assert fine < coarse


@pytest.mark.parametrize("name", SAMPLER_FUNCTIONS)
def test_each_step_is_reported_once_and_the_seed_decides(name: str) -> None:
    sigmas = calculate_sigmas(EpsDiscrete(), "normal", 4)
    x = torch.randn(1, 4, 2, 2, generator=torch.Generator().manual_seed(0)) * sigmas[0]
    steps: list[int] = []
    function = SAMPLER_FUNCTIONS[name]
    first = function(
        _gaussian_denoiser, x, sigmas, extra_args={"seed": 1}, callback=lambda state: steps.append(state["i"])
    )
    assert steps == [0, 1, 2, 3]
    assert torch.equal(first, function(_gaussian_denoiser, x, sigmas, extra_args={"seed": 1}))


def test_multistep_coefficients_are_those_of_adams_bashforth() -> None:
    times = [0.0, 1.0, 2.0, 3.0]
    found = [linear_multistep_coefficient(3, times, 2, j) for j in range(3)]
    assert found == pytest.approx([23 / 12, -16 / 12, 5 / 12])


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_fall_to_zero(name: str) -> None:
    sigmas = calculate_sigmas(EpsDiscrete(), name, 10)
    assert len(sigmas) == 11
    assert sigmas[-1] == 0
    assert bool((sigmas[:-1] > sigmas[1:]).all())


def test_names_are_known_or_refused() -> None:
    assert set(SAMPLER_FUNCTIONS) <= set(SAMPLER_NAMES)
    assert set(SCHEDULES) <= set(SCHEDULE_NAMES)
    with pytest.raises(ValueError, match="there is no scheduler"):
        calculate_sigmas(EpsDiscrete(), "nope", 3)
