"""VOID's sampler, and the prediction of CogVideoX: what they compute for a network that knows the answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.model_sampling import UnscaledVDiscrete
from darkroom.engine.diffusion.model_type import ModelType, model_type_of
from darkroom.engine.families.cogvideox.void_sampler import VoidSampler, sample_void

LEVELS = torch.tensor([80.0, 5.0, 0.5, 0.0])


def settings() -> Any:
    return SimpleNamespace(sampling_settings={"zsnr": True})


def test_v_of_an_unscaled_input_gives_the_clean_latent() -> None:
    sampling = UnscaledVDiscrete(settings())
    clean, noise, sigma = torch.randn(2, 4, 3, 2, 2), torch.randn(2, 4, 3, 2, 2), torch.tensor([0.4, 3.0])
    level = sigma.view(2, 1, 1, 1, 1)
    root, rest = 1 / (1 + level**2).sqrt(), level / (1 + level**2).sqrt()
    x = root * clean + rest * noise
    assert torch.equal(sampling.calculate_input(sigma, x), x)
    denoised = sampling.calculate_denoised(sigma, root * noise - rest * clean, x)
    assert torch.allclose(denoised, clean, atol=1e-5)
    assert model_type_of(sampling) is ModelType.V_PREDICTION_DDPM


def test_noise_keeps_its_share_from_level_to_level() -> None:
    clean, noise = torch.randn(1, 4, 2, 3, 3), torch.randn(1, 4, 2, 3, 3)
    seen: list[torch.Tensor] = []

    def model(x: torch.Tensor, sigma: torch.Tensor, **given: object) -> torch.Tensor:
        seen.append(x)
        return clean

    share = 1 / (1 + LEVELS**2)
    x = share[0] ** 0.5 * clean + (1 - share[0]) ** 0.5 * noise
    assert torch.equal(sample_void(model, x, LEVELS), clean)
    for level, found in zip(share[:-1], seen, strict=True):
        assert torch.allclose(found, level**0.5 * clean + (1 - level) ** 0.5 * noise, atol=2e-4)


def test_it_starts_from_the_noise_itself_and_reports_each_step() -> None:
    noise, steps, seen = torch.randn(2, 4, 2, 3, 3), [], []

    def guider(x: torch.Tensor, sigma: torch.Tensor, **given: object) -> torch.Tensor:
        seen.append((x, sigma, given))
        return x / 2

    def callback(step: int, denoised: torch.Tensor, x: torch.Tensor, num_steps: int) -> None:
        steps.append((step, num_steps))

    extra = {"model_options": {}, "seed": 3}
    latent = torch.full_like(noise, 9.0)
    VoidSampler().sample(guider, LEVELS, extra, callback, noise, latent, torch.zeros_like(noise))
    assert torch.equal(seen[0][0], noise)
    assert seen[0][1].tolist() == [80.0, 80.0]
    assert seen[0][2] == extra
    assert steps == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("levels", [torch.tensor([2.0]), torch.empty(0)])
def test_without_a_step_the_noise_is_the_result(levels: torch.Tensor) -> None:
    noise = torch.randn(1, 4, 2, 3, 3)
    assert torch.equal(sample_void(lambda x, sigma: x, noise, levels), noise)
