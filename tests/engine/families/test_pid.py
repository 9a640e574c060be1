"""PiD: its versions by their tensors, gates that close with noise, and the latent that conditioning has for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.conditions import RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.families import registry
from darkroom.engine.families.pid.config import PiDConfig, pid_config
from darkroom.engine.families.pid.denoiser import PiDDenoiser
from darkroom.engine.families.pid.latent_projection import NoiseGate, split_cells
from darkroom.engine.families.pid.nodes import pid_conditioning
from darkroom.engine.families.pid.transformer import PiDTransformer
from darkroom.engine.nodes.base import NodeContext

TINY = PiDConfig(
    hidden_size=32, head_dim=16, intermediate_size=24, num_layers=3, context_dim=8, max_text_tokens=4, pixel_size=4,
    pixel_attention_size=24, pixel_head_dim=12, num_pixel_layers=1, latent_size=8, num_latent_blocks=1, num_features=2,
)  # fmt: skip
CONTEXT = NodeContext("1", "p", CancelToken(), lambda value, total: None, None, None, None)
LATER = replace(TINY, is_later=True, gates_tokens=True)


def network_of(config: PiDConfig) -> PiDTransformer:
    torch.manual_seed(0)
    network = PiDTransformer(config).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.2)
    return network


@pytest.mark.parametrize(
    "config",
    [TINY, replace(TINY, latent_channels=4), replace(TINY, latent_channels=128), LATER,
     replace(LATER, latent_channels=128)],
)  # fmt: skip
def test_a_version_is_known_by_its_tensors(config: PiDConfig) -> None:
    shapes = {name: tuple(weight.shape) for name, weight in network_of(config).state_dict().items()}
    assert pid_config(shapes) == config


def test_a_latent_that_no_network_of_version_1_5_decodes_is_refused() -> None:
    shapes = {name: tuple(weight.shape) for name, weight in network_of(LATER).state_dict().items()}
    shapes["lq_proj.latent_proj.0.weight"] = (8, 12, 3, 3)
    with pytest.raises(ValueError, match="got 12 channels of a latent, expected 16 or 32"):
        pid_config(shapes)


def test_every_second_block_of_a_full_network_takes_in_a_feature() -> None:
    assert PiDConfig().block_interval == 2 and PiDConfig(num_features=5).block_interval == 3


def test_a_cell_of_flux_2_is_four_cells() -> None:
    found = split_cells(torch.arange(8.0).view(1, 8, 1, 1))
    assert found.tolist() == [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]]


@torch.no_grad()
def test_a_gate_closes_with_noise() -> None:
    torch.manual_seed(0)
    gate = NoiseGate(TINY)
    gate.log_alpha.fill_(5.0)
    tokens, features = torch.randn(2, 3, 32), torch.randn(2, 3, 32)
    found = gate(tokens, features, torch.tensor([0.0, 1.0]))
    assert not torch.allclose(found[0], tokens[0], atol=1e-3)
    torch.testing.assert_close(found[1], tokens[1])


@pytest.mark.parametrize("config", [TINY, LATER])
@torch.no_grad()
def test_an_image_follows_its_latent_of_any_size(config: PiDConfig) -> None:
    network = network_of(config)
    given = (torch.randn(2, 3, 40, 64), torch.tensor([900.0, 900.0]), torch.randn(2, 4, 8))
    sigma = torch.tensor([0.1, 0.1])
    latents = [torch.randn(2, 16, 2, 2), torch.randn(2, 16, 3, 4)]
    first, second = (network(*given, lq_latent=latent, degrade_sigma=sigma) for latent in latents)
    assert first.shape == second.shape == given[0].shape
    assert not torch.allclose(first, second, atol=1e-4)


def test_a_conditioning_without_a_latent_or_with_another_one_is_refused() -> None:
    network = network_of(TINY)
    given = (torch.randn(1, 3, 16, 16), torch.tensor([900.0]), torch.randn(1, 4, 8))
    with pytest.raises(ValueError, match="expected that of PiDConditioning"):
        network(*given)
    with pytest.raises(ValueError, match=r"got shape \[1, 4, 2, 2\], expected 16 channels"):
        network(*given, lq_latent=torch.randn(1, 4, 2, 2), degrade_sigma=torch.zeros(1))


def denoiser() -> PiDDenoiser:
    return PiDDenoiser(network_of(TINY))


def inputs_of(side: str, **condition: Any) -> dict[str, Any]:
    noise = torch.zeros(1, 3, 32, 32)
    return denoiser().extra_conds(noise=noise, device=noise.device, prompt_type=side, **condition)


def test_the_positive_conditioning_needs_a_latent_before_the_first_step() -> None:
    with pytest.raises(ValueError, match="the negative one, too, unless cfg is 1"):
        inputs_of("positive")
    assert "lq_latent" not in inputs_of("negative")
    found = inputs_of("positive", lq_latent=torch.ones(1, 16, 1, 1), degrade_sigma=torch.tensor([0.5]))
    assert found["lq_latent"].cond.shape == (1, 16, 1, 1) and found["degrade_sigma"].cond.tolist() == [0.5]


@pytest.mark.parametrize(("places", "expected"), [(range(40, 100), [1, 2, 3]), (range(200, 210), None)])
def test_a_context_window_has_the_cells_below_it(places: range, expected: list[int] | None) -> None:
    latent = torch.arange(4.0).view(1, 1, 4, 1).expand(1, 16, 4, 2)
    found = denoiser().cut_for_window("lq_latent", RegularInput(latent), LatentWindow([*places], 2, 256), ())
    assert (None if found is None else found.cond[0, 0, :, 0].tolist()) == expected
    assert denoiser().cut_for_window("context", RegularInput(latent), LatentWindow([*places], 2, 256), ()) is None


@pytest.mark.parametrize(
    ("latent_format", "shape", "family"),
    [("flux", (2, 16, 3, 4), "flux"), ("flux", (1, 128, 3, 4), "flux2"), ("sd3", (1, 16, 3, 4), "sd3"),
     ("sdxl", (1, 4, 3, 4), "sdxl"), ("qwenimage", (1, 16, 2, 3, 4), "wan")],
)  # fmt: skip
def test_a_latent_is_scaled_as_its_own_network_reads_it(
    latent_format: str, shape: tuple[int, ...], family: str
) -> None:
    torch.manual_seed(0)
    samples, text = torch.randn(shape), torch.zeros(1, 2, 8)
    ((tokens, options),) = pid_conditioning(
        CONTEXT, positive=[[text, {"kept": 1}]], latent={"samples": samples}, latent_format=latent_format,
        degrade_sigma=0.25,
    )  # fmt: skip
    scaled = registry.family_named(family).latent_format().process_in(samples)
    assert torch.equal(options["lq_latent"], scaled[:, :, 0] if len(shape) == 5 else scaled)
    assert tokens is text and options["kept"] == 1 and options["degrade_sigma"].tolist() == [0.25]


@pytest.mark.parametrize(
    ("latent_format", "shape", "message"),
    [("flux", (1, 16, 8), "expected that of an image or of a video"),
     ("qwenimage", (1, 4, 1, 3, 4), "got 4 channels, expected 16 for qwenimage")],
)  # fmt: skip
def test_a_latent_that_is_none_of_the_format_is_refused(
    latent_format: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pid_conditioning(CONTEXT, positive=[], latent={"samples": torch.zeros(shape)}, latent_format=latent_format)
