"""Each rule of guidance against the property it is defined by: no effect at its neutral value, exact otherwise."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.diffusion import guidance_rules as rules
from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.diffusion.model_sampling_variants import Flow

SHAPE = (2, 4, 8, 8)


def _draw(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.manual_seed(seed))


X, COND, UNCOND, EMPTY = (_draw(seed) for seed in range(4))
GUIDED = UNCOND + 7.0 * (COND - UNCOND)


def test_rescaled_guidance_without_a_share_is_plain_guidance() -> None:
    sigma = torch.full([2], 3.0)
    assert torch.allclose(rules.rescaled_cfg(X, sigma, COND, UNCOND, 7.0, 0.0), GUIDED, atol=1e-4)


def test_rescaled_guidance_keeps_the_deviation_of_the_positive_v() -> None:
    sigma = torch.full([2], 3.0)

    def v_of(denoised: torch.Tensor) -> torch.Tensor:
        return (X / 10 - denoised) * 10**0.5 / 3

    rescaled = rules.rescaled_cfg(X, sigma, COND, UNCOND, 7.0, 1.0)
    assert torch.allclose(v_of(rescaled).std(dim=(1, 2, 3)), v_of(COND).std(dim=(1, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("shape", [SHAPE, (2, 4, 3, 8, 8)])
def test_rescaled_predictions_keep_the_deviation_of_the_positive_ones(shape: tuple[int, ...]) -> None:
    cond, uncond = (torch.randn(shape, generator=torch.manual_seed(seed)) for seed in range(2))
    deviation = rules.rescaled_predictions(cond, uncond, 7.0, 1.0).flatten(1).std(dim=1)
    assert torch.allclose(deviation, cond.flatten(1).std(dim=1), rtol=1e-4)
    plain = uncond + 7.0 * (cond - uncond)
    assert torch.allclose(rules.rescaled_predictions(cond, uncond, 7.0, 0.0), plain, atol=1e-4)
    assert torch.allclose(
        rules.rescaled_predictions(cond, uncond, 7.0, 0.5),
        plain.lerp(rules.rescaled_predictions(cond, uncond, 7.0, 1.0), 0.5),
        atol=1e-4,
    )


def test_only_the_perpendicular_part_of_the_negative_counts() -> None:
    parallel = EMPTY + 0.5 * (COND - EMPTY)
    plain = EMPTY + 3.0 * (COND - EMPTY)
    assert torch.allclose(rules.perpendicular_negative(COND, parallel, EMPTY, 1.0, 3.0), plain, atol=1e-4)


def test_zero_star_changes_nothing_where_both_scores_fit() -> None:
    assert torch.allclose(rules.zero_star(COND, X, COND, COND, 7.0), COND, atol=1e-4)


def test_norm_limits_hold() -> None:
    limited = rules.channel_normed(GUIDED, COND, 1.0)
    assert bool((limited.norm(dim=1) <= COND.norm(dim=1) + 1e-4).all())
    renormed = rules.renormed_cfg(COND, UNCOND, 7.0, 1.0)
    assert torch.allclose(renormed.flatten(1).norm(dim=1), COND.flatten(1).norm(dim=1), rtol=1e-4)
    assert torch.allclose(rules.renormed_cfg(COND, UNCOND, 7.0, 0.0), GUIDED, atol=1e-5)


def test_equal_scales_of_all_frequencies_scale_the_guidance() -> None:
    assert torch.allclose(rules.frequency_scaled(COND, 1.5, 1.5, 3), COND * 1.5, atol=1e-5)


def test_projected_guidance_without_its_parts_is_one_more_step_of_plain_guidance() -> None:
    guidance = rules.ProjectedGuidance(eta=1.0, norm_threshold=0.0, momentum=0.0)
    modified = guidance.positive(COND, UNCOND, 7.0, sigma=2.0)
    assert torch.allclose(UNCOND + 7.0 * (modified - UNCOND), COND + 7.0 * (COND - UNCOND), atol=1e-4)


def test_a_rising_sigma_forgets_the_running_average() -> None:
    guidance = rules.ProjectedGuidance(eta=1.0, norm_threshold=5.0, momentum=0.5)
    first = guidance.positive(COND, UNCOND, 7.0, sigma=2.0)
    assert not torch.equal(first, guidance.positive(COND, UNCOND, 7.0, sigma=1.0))
    assert torch.equal(first, guidance.positive(COND, UNCOND, 7.0, sigma=14.0))


def test_tangential_damping_leaves_a_negative_in_the_common_direction() -> None:
    damped = rules.tangentially_damped(X, COND, X - 2 * (X - COND))
    assert torch.allclose(damped, X - 2 * (X - COND), atol=1e-4)


def test_mahiro_of_a_negative_like_the_guided_latent_keeps_it() -> None:
    guided = COND * 3.0
    assert torch.allclose(rules.mahiro(guided, COND, COND, 3.0), guided, atol=1e-5)


def test_epsilon_scaling_divides_the_noise() -> None:
    assert torch.allclose(X - rules.epsilon_scaled(GUIDED, X, 2.0), (X - GUIDED) / 2, atol=1e-5)


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_epsilon_scaling_leaves_a_clean_latent(factor: float) -> None:
    assert torch.equal(rules.epsilon_scaled(X, X, factor), X)


def test_a_rescaled_score_moves_the_noise_by_the_signals_share() -> None:
    sampling, sigma = EpsDiscrete(), torch.tensor([2.0, 0.5])
    level = sigma.view(2, 1, 1, 1)
    snr = 1 / level**2
    factor = (snr * 9 + 1) / (snr * 9 / 0.7 + 1)  # the paper's eq. 6, of a deviation of 3
    rescaled = rules.rescaled_score(COND, X, sigma, sampling, 0.7, 3.0)
    assert torch.allclose(X - rescaled, factor * (X - COND), atol=1e-5)
    assert rules.rescaled_score(COND, X, sigma, sampling, 1.0, 3.0) is COND


def test_a_rescaled_score_of_a_flow_keeps_the_ends() -> None:
    ends = rules.rescaled_score(COND, X, torch.tensor([1.0, 0.0]), Flow(1.0, 1000), 0.7, 1.0)
    assert torch.equal(ends, COND)
    middle = rules.rescaled_score(COND, X, torch.tensor([0.5, 0.5]), Flow(1.0, 1000), 0.7, 1.0)
    noise = (X - 0.5 * COND) / 0.5
    factor = 2 / (1 / 0.7 + 1)
    assert torch.allclose(middle, (X - factor * 0.5 * noise) / 0.5, atol=1e-5)


def test_guidance_has_the_positive_norm_by_a_share_of_its_strength() -> None:
    guided = UNCOND + 3.0 * (COND - UNCOND)
    whole = rules.guided_to_norm(COND, UNCOND, 3.0, 1.0)
    torch.testing.assert_close(whole.norm(dim=1), COND.norm(dim=1))
    torch.testing.assert_close(whole / whole.norm(dim=1, keepdim=True), guided / guided.norm(dim=1, keepdim=True))
    torch.testing.assert_close(rules.guided_to_norm(COND, UNCOND, 3.0, 0.0), guided)
