"""Parameterisations recover a known image from the exact output of a network, and schedules invert each other."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.model_sampling import (
    X0,
    ContinuousEdmSchedule,
    ContinuousVSchedule,
    DiscreteSchedule,
    Edm,
    Eps,
    EpsDiscrete,
    VPrediction,
    rescale_zero_terminal_snr,
    reshape_sigma,
)
from darkroom.engine.diffusion.model_sampling_variants import CascadeEps
from darkroom.engine.diffusion.sigmas import normal

SIGMAS = torch.tensor([0.03, 0.7, 14.6])


def known(sigma_data: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A clean latent [3, 4, 2, 5] of deviation `sigma_data`, unit noise, and their sum at `SIGMAS`."""
    generator = torch.Generator().manual_seed(1)
    clean = torch.randn(3, 4, 2, 5, generator=generator, dtype=torch.float64) * sigma_data
    noise = torch.randn(3, 4, 2, 5, generator=generator, dtype=torch.float64)
    return clean, noise, clean + noise * SIGMAS.double().view(3, 1, 1, 1)


def exact_output(prediction: type[Eps], sigma_data: float) -> torch.Tensor:
    """Output of a perfect network, from the definition of each prediction."""
    clean, noise, _ = known(sigma_data)
    sigma = SIGMAS.double().view(3, 1, 1, 1)
    angle = torch.atan2(sigma, torch.full_like(sigma, sigma_data))
    v = torch.cos(angle) * noise - torch.sin(angle) * clean / sigma_data
    return {Eps: noise, X0: clean, VPrediction: v, Edm: -v}[prediction]


def parameterised(prediction: type[Eps], sigma_data: float) -> Eps:
    made = prediction()
    made.sigma_data = sigma_data
    return made


@pytest.mark.parametrize("sigma_data", [1.0, 0.5])
@pytest.mark.parametrize("prediction", [Eps, VPrediction, Edm, X0])
def test_a_perfect_network_gives_the_clean_latent(prediction: type[Eps], sigma_data: float) -> None:
    clean, _, noisy = known(sigma_data)
    found = parameterised(prediction, sigma_data).calculate_denoised(
        SIGMAS.double(), exact_output(prediction, sigma_data), noisy
    )
    torch.testing.assert_close(found, clean, rtol=0, atol=1e-9)


def test_the_coefficients_of_edm_are_those_of_the_paper() -> None:
    """Karras et al. 2022, table 1: c_skip = d^2 / (s^2 + d^2), c_out = s d / sqrt(s^2 + d^2)."""
    edm, one = parameterised(Edm, 0.5), torch.ones(1, 1, 1, 1)
    for sigma in SIGMAS:
        s = float(sigma)
        skipped = edm.calculate_denoised(sigma.view(1), torch.zeros_like(one), one)
        added = edm.calculate_denoised(sigma.view(1), one, torch.zeros_like(one))
        assert float(skipped) == pytest.approx(0.25 / (s * s + 0.25), rel=1e-5)
        assert float(added) == pytest.approx(s * 0.5 / math.hypot(s, 0.5), rel=1e-5)


@pytest.mark.parametrize("sigma_data", [1.0, 0.5])
def test_the_networks_input_has_unit_variance(sigma_data: float) -> None:
    generator = torch.Generator().manual_seed(2)
    clean = torch.randn(3, 100_000, generator=generator) * sigma_data
    noisy = clean + torch.randn(3, 100_000, generator=generator) * SIGMAS.view(3, 1)
    scaled = parameterised(Eps, sigma_data).calculate_input(SIGMAS, noisy)
    torch.testing.assert_close(scaled.std(dim=1), torch.ones(3), rtol=0, atol=0.02)


def test_noise_is_added_to_the_image_and_pure_noise_counts_the_variance_of_the_data() -> None:
    clean, noise, noisy = (item.float() for item in known(1.0))
    eps = parameterised(Eps, 1.0)
    torch.testing.assert_close(eps.noise_scaling(SIGMAS, noise, clean), noisy)
    first = eps.noise_scaling(SIGMAS[2:], noise, torch.zeros_like(noise), max_denoise=True)
    torch.testing.assert_close(first, noise * math.hypot(1.0, 14.6))
    assert eps.inverse_noise_scaling(SIGMAS, noisy) is noisy


def test_one_sigma_is_for_the_whole_batch() -> None:
    assert reshape_sigma(torch.tensor([2.0]), 4).shape == ()
    assert reshape_sigma(torch.tensor([2.0, 3.0]), 4).shape == (2, 1, 1, 1)


def test_trained_levels_are_those_of_stable_diffusion() -> None:
    schedule = DiscreteSchedule()
    assert float(schedule.sigma_min) == pytest.approx(0.029167, rel=1e-4)
    assert float(schedule.sigma_max) == pytest.approx(14.614642, rel=1e-5)
    assert bool((schedule.sigmas.diff() > 0).all())


@pytest.mark.parametrize("timestep", [0, 1, 250, 998, 999])
def test_a_trained_timestep_and_its_level_invert_each_other(timestep: int) -> None:
    schedule = DiscreteSchedule()
    level = schedule.sigma(torch.tensor(float(timestep)))
    assert float(level) == pytest.approx(float(schedule.sigmas[timestep]), rel=1e-6)
    assert int(schedule.timestep(level)) == timestep


def test_between_two_timesteps_is_the_geometric_mean() -> None:
    schedule = DiscreteSchedule()
    found = float(schedule.sigma(torch.tensor(400.5)))
    assert found == pytest.approx(math.sqrt(float(schedule.sigmas[400]) * float(schedule.sigmas[401])), rel=1e-6)


@pytest.mark.parametrize(("percent", "timestep"), [(0.25, 749.25), (0.5, 499.5), (0.999, 0.999)])
def test_a_share_of_the_way_is_a_timestep_from_the_end(percent: float, timestep: float) -> None:
    schedule = DiscreteSchedule()
    below = int(timestep)
    logs = [math.log(float(level)) for level in schedule.sigmas[below : below + 2]]
    expected = math.exp(logs[0] + (logs[1] - logs[0]) * (timestep - below))
    assert schedule.percent_to_sigma(percent) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("schedule", [DiscreteSchedule(), ContinuousEdmSchedule(), ContinuousVSchedule()])
def test_before_the_start_is_every_level_and_after_the_end_none(schedule: Any) -> None:
    assert schedule.percent_to_sigma(0.0) > 1e8 and schedule.percent_to_sigma(-1.0) > 1e8
    assert schedule.percent_to_sigma(1.0) == schedule.percent_to_sigma(2.0) == 0.0


@pytest.mark.parametrize("schedule", [ContinuousEdmSchedule(), ContinuousVSchedule()])
def test_continuous_timesteps_invert_each_other(schedule: Any) -> None:
    torch.testing.assert_close(schedule.sigma(schedule.timestep(SIGMAS)), SIGMAS, rtol=1e-4, atol=0)


def test_continuous_timesteps_are_those_of_the_papers() -> None:
    assert float(ContinuousEdmSchedule().timestep(torch.tensor(math.e**2))) == pytest.approx(0.5)
    assert float(ContinuousVSchedule().timestep(torch.tensor(1.0))) == pytest.approx(0.5)
    assert ContinuousEdmSchedule().percent_to_sigma(0.5) == pytest.approx(math.sqrt(0.002 * 120.0), rel=1e-4)


def test_a_schedule_without_terminal_signal_keeps_its_first_level_and_ends_in_noise() -> None:
    """Lin et al. 2023: square roots of the signal's share are moved and scaled, so that the last is 0."""
    plain = DiscreteSchedule().sigmas.double()
    found = rescale_zero_terminal_snr(plain)
    roots = [1 / math.hypot(1.0, float(level)) for level in plain]
    scale = roots[0] / (roots[0] - roots[-1])
    for index in (0, 1, 500, 998):
        root = (roots[index] - roots[-1]) * scale
        assert float(found[index]) == pytest.approx(math.sqrt(1 / root**2 - 1), rel=1e-5)
    assert float(found[0]) == pytest.approx(float(plain[0]), rel=1e-6)
    assert float(found[-1]) > 4000


def test_settings_of_a_model_decide_its_schedule() -> None:
    config = SimpleNamespace(sampling_settings={"linear_start": 0.001, "linear_end": 0.002, "timesteps": 10})
    schedule = EpsDiscrete(config)
    kept = math.prod(1 - (math.sqrt(0.001) + (math.sqrt(0.002) - math.sqrt(0.001)) * i / 9) ** 2 for i in range(10))
    assert len(schedule.sigmas) == 10
    assert float(schedule.sigma_max) == pytest.approx(math.sqrt((1 - kept) / kept), rel=1e-5)
    assert float(EpsDiscrete(config, zsnr=True).sigma_max) > 4000


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (2.0, [99.99500274658203, 3.4530599117279053, 1.1739542484283447, 0.020001187920570374, 0.0]),
        (1.0, [99.99419403076172, 1.7265300750732422, 0.5869771242141724, 0.010001329705119133, 0.0]),
    ],
)
def test_levels_of_stable_cascade_are_comfyuis_to_the_bit(shift: float, expected: list[float]) -> None:
    """The numbers are those of ComfyUI 0.3.64 (`normal`, 4 steps). The last one moves by 3e-4 with a constant's bit."""
    assert normal(CascadeEps(shift), 4).tolist() == expected
