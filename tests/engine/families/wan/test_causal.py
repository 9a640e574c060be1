"""Videos that are drawn a few frames after the other: what a frame sees, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.wan.causal import STATE, CausalState, WanCausalConfig, WanCausalTransformer
from darkroom.engine.families.wan.causal_sampler import sample_ar_video

CONFIG = WanCausalConfig(width=128, num_blocks=2, inner_width=96, context_dim=24, in_channels=4, out_channels=4)


@pytest.fixture(scope="module")
def network() -> WanCausalTransformer:
    torch.manual_seed(0)
    made = WanCausalTransformer(CONFIG).requires_grad_(False)
    for name, weight in made.named_parameters():
        if ".norm_" in name:
            weight.fill_(1.0)
        elif name.endswith("modulation"):
            weight.normal_(0.0, 0.5)
    return made


class Guided:
    """A guider, as a sampler is given it: a model whose predictions are the network's."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.inner_model, self.diffusion_model, self.calls = self, network, 0

    def get_dtype(self) -> torch.dtype:
        return torch.float32

    def process_latent_in(self, latent: torch.Tensor) -> torch.Tensor:
        return latent

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, model_options: Any, seed: int) -> torch.Tensor:
        self.calls += 1
        text = torch.ones(x.shape[0], 3, 24)
        options = model_options["transformer_options"]
        out: torch.Tensor = self.diffusion_model(x, sigma * 1000, text, transformer_options=options)
        return out


def drawn(network: torch.nn.Module, noise: torch.Tensor, frames: int, **options: Any) -> torch.Tensor:
    given = {"model_options": {"transformer_options": {**options}}, "seed": 3}
    return sample_ar_video(Guided(network), noise, torch.tensor([1.0, 0.5, 0.0]), given, num_frame_per_block=frames)


def noise() -> torch.Tensor:
    return torch.randn(1, 4, 4, 4, 6, generator=torch.Generator().manual_seed(1))


def test_a_part_is_drawn_as_if_the_later_ones_were_not_there(network: WanCausalTransformer) -> None:
    other = noise()
    other[:, :, 2:] += 1.0
    plain, changed = drawn(network, noise(), 2), drawn(network, other, 2)
    torch.testing.assert_close(plain[:, :, :2], changed[:, :, :2])
    assert not torch.allclose(plain[:, :, 2:], changed[:, :, 2:], atol=1e-4)


def test_a_later_part_sees_the_earlier_ones(network: WanCausalTransformer) -> None:
    other = noise()
    other[:, :, :2] += 1.0
    assert not torch.allclose(drawn(network, noise(), 2)[:, :, 2:], drawn(network, other, 2)[:, :, 2:], atol=1e-4)


def test_the_whole_video_in_one_part_sees_what_a_plain_network_sees(network: WanCausalTransformer) -> None:
    x, text = noise(), torch.ones(1, 3, 24)
    options = {STATE: CausalState(4)}
    plain = network(x, torch.tensor([500.0]), text)
    torch.testing.assert_close(network(x, torch.tensor([500.0]), text, transformer_options=options), plain)


def test_a_video_begins_with_the_frames_that_are_given(network: WanCausalTransformer) -> None:
    first = torch.ones(1, 4, 1, 4, 6)
    out = drawn(network, noise(), 3, ar_config={"initial_latent": first})
    torch.testing.assert_close(out[:, :, :1], first)
    assert not torch.allclose(out[:, :, 1:], drawn(network, noise(), 3)[:, :, 1:], atol=1e-4)


def test_the_state_is_gone_behind_the_run(network: WanCausalTransformer) -> None:
    options: dict[str, Any] = {}
    given = {"model_options": {"transformer_options": options}, "seed": 3}
    sample_ar_video(Guided(network), noise(), torch.tensor([1.0, 0.0]), given)
    assert options == {}


def test_a_second_condition_images_and_other_networks_are_refused(network: WanCausalTransformer) -> None:
    options = {STATE: CausalState(4), "cond_or_uncond": [0, 1]}
    with pytest.raises(ValueError, match="cfg: .* expected 1"):
        network(noise(), torch.tensor([500.0]), torch.ones(1, 3, 24), transformer_options=options)
    with pytest.raises(ValueError, match="got 4 dimensions, expected 5"):
        drawn(network, noise()[:, :, 0], 1)
    with pytest.raises(ValueError, match="model: SamplerARVideo needs a network that draws frame after frame"):
        drawn(torch.nn.Linear(1, 1), noise(), 1)
