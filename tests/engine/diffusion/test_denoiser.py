"""A network under its parameterisation: the scale of its input, its timestep, its further channels, its output."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.conditions import CrossAttentionInput, NoiseShapedInput
from darkroom.engine.diffusion.denoiser import Denoiser, ModelConfig
from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.diffusion.wrappers import DIFFUSION_MODEL

SIGMA = torch.tensor([14.614642, 0.0291675])
X = torch.randn(2, 4, 8, 12, generator=torch.Generator().manual_seed(5))  # [B, C, h, w]
CPU = torch.device("cpu")


class GreyFormat(LatentFormat):
    scale_factor = 0.5
    blank = (1.0, 2.0, 3.0, 4.0)


class Network(torch.nn.Module):
    """A network that predicts `noise` and records what it was called with."""

    def __init__(self, noise: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
        self.noise = noise
        self.seen: list[tuple[Any, ...]] = []

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, context: Any, *rest: Any, **extra: Any) -> torch.Tensor:
        self.seen.append((x, timesteps, context, extra))
        return self.noise.to(x.dtype)


def denoiser(network: Network, *keys: str) -> Denoiser:
    return Denoiser(network, config=ModelConfig(latent_format=GreyFormat(), memory_usage_factor=2.0), concat_keys=keys)


def test_a_network_that_predicts_the_noise_gives_the_image() -> None:
    clean, noise = X, torch.randn(2, 4, 8, 12)
    network = Network(noise)
    found = denoiser(network).apply_model(clean + noise * SIGMA.view(2, 1, 1, 1), SIGMA)
    torch.testing.assert_close(found, clean, rtol=0, atol=1e-5)


def test_the_network_sees_a_scaled_input_and_the_nearest_trained_timestep() -> None:
    network = Network(torch.zeros_like(X))
    denoiser(network).apply_model(X, SIGMA)
    ((seen, timesteps, context, _),) = network.seen
    scales = torch.tensor([1 / math.hypot(1.0, float(sigma)) for sigma in SIGMA])
    torch.testing.assert_close(seen, X * scales.view(2, 1, 1, 1))
    assert timesteps.tolist() == [999.0, 0.0] and context is None


@pytest.mark.parametrize("manual", [None, torch.bfloat16])
def test_the_network_computes_in_its_type_and_the_result_is_float32(manual: torch.dtype | None) -> None:
    network = Network(torch.zeros_like(X), torch.float16)
    made = denoiser(network)
    made.manual_cast_dtype = manual
    found = made.apply_model(X, SIGMA, c_crossattn=torch.ones(2, 3, 5), extra=torch.ones(1), count=torch.tensor([1]))
    ((seen, timesteps, context, extra),) = network.seen
    dtype = manual or torch.float16
    assert (seen.dtype, context.dtype, extra["extra"].dtype) == (dtype, dtype, dtype)
    assert (timesteps.dtype, extra["count"].dtype, found.dtype) == (torch.float32, torch.int64, torch.float32)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_network_may_call_no_wrappers(is_wrapped: bool) -> None:
    network = Network(torch.zeros_like(X))
    network.is_wrapped = is_wrapped  # type: ignore[assignment]
    calls: list[str] = []

    def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("wrapped")
        return executor(*args, **kwargs)

    options = {"wrappers": {DIFFUSION_MODEL: {"test": [wrapper]}}}
    denoiser(network).apply_model(X, SIGMA, transformer_options=options)
    assert len(network.seen) == 1 and calls == ["wrapped"] * is_wrapped


def test_further_channels_follow_the_scaled_latent_unscaled() -> None:
    network = Network(torch.zeros_like(X))
    further = torch.full((2, 1, 8, 12), 7.0)
    denoiser(network).apply_model(X, SIGMA, c_concat=further)
    seen = network.seen[0][0]
    assert seen.shape == (2, 5, 8, 12) and torch.equal(seen[:, 4:], further)


def test_a_plain_network_has_no_further_channels() -> None:
    tokens = torch.ones(1, 77, 8)
    inputs = denoiser(Network(X)).extra_conds(noise=X, device=CPU, cross_attn=tokens)
    assert inputs.keys() == {"c_crossattn"} and isinstance(inputs["c_crossattn"], CrossAttentionInput)


def test_an_inpainting_network_without_a_mask_paints_all_of_a_blank_image() -> None:
    inputs = denoiser(Network(X), "mask", "masked_image").extra_conds(noise=X, device=CPU)
    channels = inputs["c_concat"].cond  # [B, 1 + C, h, w]
    assert isinstance(inputs["c_concat"], NoiseShapedInput)
    assert torch.equal(channels, torch.tensor([1.0, 1.0, 2.0, 3.0, 4.0]).view(1, 5, 1, 1).expand(2, 5, 8, 12))


def test_an_inpainting_network_sees_the_rounded_mask_and_the_scaled_image() -> None:
    mask = torch.zeros(1, 1, 16, 24)
    mask[..., 12:] = 0.6
    image = torch.full((1, 4, 8, 12), 3.0)
    channels = denoiser(Network(X), "mask", "masked_image").concat_cond(
        noise=X, device=CPU, latent_image=X, concat_mask=mask, concat_latent_image=image
    )
    assert channels is not None
    assert torch.equal(channels[:, 0], torch.cat([torch.zeros(6), torch.ones(6)]).expand(2, 8, 12))
    assert torch.equal(channels[:, 1:], torch.full((2, 4, 8, 12), 1.5))


def test_an_editing_network_sees_the_unscaled_image_or_nothing() -> None:
    made = denoiser(Network(X), "edited_image")
    image = torch.full((1, 4, 8, 12), 3.0)
    edited = made.concat_cond(noise=X, device=CPU, concat_latent_image=image)
    assert edited is not None and torch.equal(edited, image.expand(2, 4, 8, 12))
    nothing = made.concat_cond(noise=X, device=CPU)
    assert nothing is not None and not nothing.any() and nothing.shape == X.shape


def test_an_image_of_other_proportions_is_cut_around_its_middle() -> None:
    """A network of 8 x 12 cells is given the middle 12 columns of an image 8 x 20."""
    columns = torch.arange(20.0).expand(1, 4, 8, 20)
    found = denoiser(Network(X), "edited_image").concat_cond(noise=X, device=CPU, concat_latent_image=columns)
    assert found is not None
    torch.testing.assert_close(found, torch.arange(4.0, 16.0).expand(2, 4, 8, 12))


def test_the_kept_region_has_the_noise_of_its_level() -> None:
    noise = torch.randn(2, 4, 8, 12)
    found = denoiser(Network(X)).scale_latent_inpaint(SIGMA, noise, X)
    torch.testing.assert_close(found, X + noise * SIGMA.view(2, 1, 1, 1))


def test_latents_are_scaled_in_and_out() -> None:
    made = denoiser(Network(X))
    torch.testing.assert_close(made.process_latent_in(X), X * 0.5)
    torch.testing.assert_close(made.process_latent_out(made.process_latent_in(X)), X)


def test_memory_grows_with_the_cells_and_the_size_of_a_number() -> None:
    made, half = denoiser(Network(X)), denoiser(Network(X, torch.float16))
    assert made.memory_required([2, 4, 64, 64]) == pytest.approx(2 * 64 * 64 * 4 * 0.01 * 2.0 * 1024 * 1024)
    assert made.memory_required([2, 4, 64, 64]) == 2 * half.memory_required([2, 4, 64, 64])
