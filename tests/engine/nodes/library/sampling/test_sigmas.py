"""The scheduler nodes: first and last levels, their tables, and how levels are split and joined."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.nodes.library.sampling import sigmas as nodes

CONTEXT: Any = None


@pytest.fixture(scope="module")
def model() -> Any:
    sampling = EpsDiscrete()
    return SimpleNamespace(get_model_object=lambda name: sampling)


def test_basic_scheduler_takes_the_last_levels_of_a_longer_schedule(model: Any) -> None:
    whole = nodes.basic_scheduler(CONTEXT, model=model, scheduler="karras", steps=20)
    half = nodes.basic_scheduler(CONTEXT, model=model, scheduler="karras", steps=10, denoise=0.5)
    assert torch.equal(half, whole[-11:])
    assert len(nodes.basic_scheduler(CONTEXT, model=model, scheduler="karras", steps=10, denoise=0.0)) == 0


def test_schedules_of_two_bounds_run_from_one_to_the_other() -> None:
    for schedule in (nodes.karras_scheduler, nodes.exponential_scheduler, nodes.polyexponential_scheduler):
        levels = schedule(CONTEXT, steps=5, sigma_max=10.0, sigma_min=0.1)
        assert len(levels) == 6
        assert levels[0] == pytest.approx(10.0) and levels[-2] == pytest.approx(0.1) and levels[-1] == 0


def test_polyexponential_of_power_one_is_exponential() -> None:
    bounds = {"steps": 7, "sigma_max": 12.0, "sigma_min": 0.05}
    poly = nodes.polyexponential_scheduler(CONTEXT, **bounds, rho=1.0)
    assert torch.allclose(poly, nodes.exponential_scheduler(CONTEXT, **bounds))


def test_laplace_is_symmetric_in_log_sigma_and_does_not_end_in_zero() -> None:
    levels = nodes.laplace_scheduler(CONTEXT, steps=5, sigma_max=1e4, sigma_min=1e-4, mu=0.0, beta=0.5)
    assert len(levels) == 5
    assert levels[2] == pytest.approx(1.0, abs=1e-4)
    assert torch.allclose(levels * levels.flip(0), torch.ones(5), atol=1e-4)


def test_variance_preserving_starts_at_the_sde_s_end() -> None:
    levels = nodes.vp_scheduler(CONTEXT, steps=3, beta_d=19.9, beta_min=0.1, eps_s=0.001)
    assert levels[0] == pytest.approx(math.sqrt(math.expm1(19.9 / 2 + 0.1)), rel=1e-5)


def test_turbo_visits_every_hundredth_timestep(model: Any) -> None:
    levels = nodes.sd_turbo_scheduler(CONTEXT, model=model, steps=2, denoise=0.5)
    trained = EpsDiscrete().sigmas
    assert torch.allclose(levels, torch.tensor([float(trained[499]), float(trained[399]), 0.0]))


def test_align_your_steps_keeps_its_table_at_ten_steps_and_interpolates_otherwise() -> None:
    ten = nodes.align_your_steps_scheduler(CONTEXT, model_type="SD1", steps=10)
    assert ten[1] == pytest.approx(6.4745760956) and ten[-1] == 0
    five = nodes.align_your_steps_scheduler(CONTEXT, model_type="SD1", steps=5)
    assert torch.allclose(five[:-1], ten[:-1][::2])
    assert len(nodes.align_your_steps_scheduler(CONTEXT, model_type="SD1", steps=10, denoise=0.3)) == 4


def test_optimal_steps_are_comfyuis() -> None:
    seven = nodes.optimal_steps_scheduler(CONTEXT, model_type="FLUX", steps=7)
    expected = [0.99680001, 0.98572302, 0.97598273, 0.96056181, 0.92463577, 0.78180605, 0.37491331, 0.0]
    assert seven.tolist() == pytest.approx(expected, rel=1e-6)
    half_of_eight = nodes.optimal_steps_scheduler(CONTEXT, model_type="Wan", steps=8, denoise=0.5)
    assert half_of_eight.tolist() == pytest.approx([0.97299999, 0.95297432, 0.90200001, 0.64673334, 0.0], rel=1e-6)
    table = nodes.optimal_steps_scheduler(CONTEXT, model_type="FLUX", steps=10)
    assert table[[0, 9, 10]].tolist() == pytest.approx([0.9968, 0.2808, 0.0])
    assert len(nodes.optimal_steps_scheduler(CONTEXT, model_type="Chroma", steps=8, denoise=0.0)) == 0


def test_gits_has_a_row_for_every_coefficient_and_number_of_steps() -> None:
    for hundredths in range(80, 151, 5):
        for steps in (2, 20, 33):
            levels = nodes.gits_scheduler(CONTEXT, coeff=hundredths / 100, steps=steps)
            assert len(levels) == steps + 1
            assert bool((levels[:-1] > levels[1:]).all())
    assert nodes.gits_scheduler(CONTEXT, coeff=0.8, steps=2)[1] == pytest.approx(7.49001646)


def test_gits_names_the_coefficients_there_are() -> None:
    with pytest.raises(ValueError, match=r"coefficients are 0\.8, 0\.85"):
        nodes.gits_scheduler(CONTEXT, coeff=0.81, steps=4)


def test_split_parts_share_the_level_between_them() -> None:
    levels = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0])
    high, low = nodes.split_sigmas(CONTEXT, sigmas=levels, step=1)
    assert high.tolist() == [4.0, 3.0] and low.tolist() == [3.0, 2.0, 1.0, 0.0]
    high, low = nodes.split_sigmas_denoise(CONTEXT, sigmas=levels, denoise=0.25)
    assert high.tolist() == [4.0, 3.0, 2.0, 1.0] and low.tolist() == [1.0, 0.0]
    high, low = nodes.split_sigmas_denoise(CONTEXT, sigmas=levels, denoise=0.0)
    assert high.tolist() == [] and low.tolist() == [0.0]


def test_flipped_levels_do_not_begin_with_zero() -> None:
    given = torch.tensor([2.0, 1.0, 0.0])
    assert nodes.flip_sigmas(CONTEXT, sigmas=given).tolist() == pytest.approx([0.0001, 1.0, 2.0])
    assert given.tolist() == [2.0, 1.0, 0.0]


def test_the_first_level_is_set_on_a_copy() -> None:
    given = torch.tensor([2.0, 1.0])
    assert nodes.set_first_sigma(CONTEXT, sigmas=given, sigma=9.0).tolist() == [9.0, 1.0]
    assert given.tolist() == [2.0, 1.0]


def test_steps_between_two_levels_are_divided() -> None:
    levels = torch.tensor([8.0, 4.0, 0.0])
    limits = {"steps": 2, "start_at_sigma": 5.0, "end_at_sigma": 1.0}
    extended = nodes.extend_intermediate_sigmas(CONTEXT, sigmas=levels, spacing="linear", **limits)
    assert extended.tolist() == [8.0, 4.0, 2.0, 0.0]
    cosine = nodes.extend_intermediate_sigmas(CONTEXT, sigmas=levels, spacing="cosine", **limits)
    assert cosine[2] == pytest.approx(4.0 - 4.0 * math.sin(math.pi / 4))


def test_the_ends_of_the_way_have_two_meanings(model: Any) -> None:
    sampling = EpsDiscrete()
    for percent, actual in ((0.0, sampling.sigma_max), (1.0, sampling.sigma_min)):
        inputs = {"model": model, "sampling_percent": percent}
        assert nodes.sampling_percent_to_sigma(CONTEXT, **inputs, return_actual_sigma=True) == float(actual)
        assert nodes.sampling_percent_to_sigma(CONTEXT, **inputs) == sampling.percent_to_sigma(percent)
