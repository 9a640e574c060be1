"""The transformer with experts: what its gate selects, layers of the language model, images beside, odd sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families.hidream.transformer import (
    ExpertLayers,
    HiDreamConfig,
    HiDreamTransformer,
    hidream_config,
)
from darkroom.engine.layers.feed_forward import GatedFeedForward

CONFIG = HiDreamConfig(
    width=128, num_double=1, num_single=2, text_dim=24, language_dim=16, label_dim=12, expert_width=32, shared_width=16,
    text_width=32, in_channels=4, out_channels=4,
)  # fmt: skip


def drawn_weights(network: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for name, weight in network.requires_grad_(False).named_parameters():
        weight.normal_(0.0, 0.15)
        if "norm" in name:
            weight.add_(1.0)
    return network


@pytest.fixture(scope="module")
def network() -> HiDreamTransformer:
    made = drawn_weights(HiDreamTransformer(CONFIG))
    assert isinstance(made, HiDreamTransformer)
    return made


def draw(
    network: HiDreamTransformer, latent: torch.Tensor, num_states: int = 3, **options: torch.Tensor
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    text, states, pooled = (torch.randn(shape, generator=generator) for shape in ((1, 6, 24), (1, 3, 5, 16), (1, 12)))
    drawn: torch.Tensor = network(
        latent, torch.tensor([600.0]), text, pooled, encoder_hidden_states_llama3=states[:, :num_states], **options
    )
    return drawn


def latent(height: int = 4, width: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randn(1, 4, height, width, generator=torch.Generator().manual_seed(seed))


def test_experts_wait_once_for_the_number_of_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = drawn_weights(ExpertLayers(CONFIG))
    read, asked = torch.Tensor.tolist, []

    def counted(tensor: torch.Tensor) -> object:
        asked.append(read(tensor))
        return asked[-1]

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    monkeypatch.setattr(torch.Tensor, "nonzero", None)
    monkeypatch.setattr(torch.Tensor, "item", None)
    layers(torch.randn(2, 7, 128, generator=torch.Generator().manual_seed(3)))
    assert len(asked) == 1 and sum(asked[0]) == 2 * 2 * 7


def test_tokens_pass_the_two_experts_of_the_highest_scores_and_the_shared_one() -> None:
    layers = drawn_weights(ExpertLayers(CONFIG))
    assert isinstance(layers, ExpertLayers)
    tokens = torch.randn(1, 3, 128, generator=torch.Generator().manual_seed(3))
    scores = (tokens @ layers.gate.weight.T).softmax(dim=-1)
    for index in range(3):
        best = scores[0, index].argsort(descending=True)[:2].tolist()
        token = tokens[:, index : index + 1]
        expected = layers.shared_experts(token) + sum(
            scores[0, index, number] * layers.experts[number](token) for number in best
        )
        torch.testing.assert_close(layers(tokens)[:, index : index + 1], expected, atol=1e-5, rtol=1e-5)


def test_blocks_beyond_the_language_models_depth_see_its_last_layer(network: HiDreamTransformer) -> None:
    x = latent()
    assert not torch.allclose(draw(network, x), draw(network, x, num_states=2), atol=1e-4)
    layers, text = network._texts(torch.zeros(1, 6, 24), torch.randn(1, 1, 5, 16))
    assert len(layers) == 3 and text.shape == (1, 11, 128)


def test_a_latent_of_odd_size_is_padded_and_cut_again(network: HiDreamTransformer) -> None:
    odd = latent(5, 7)
    padded = torch.nn.functional.pad(odd, (0, 1, 0, 1), mode="circular")
    assert torch.equal(draw(network, odd), draw(network, padded)[..., :5, :7])


def test_an_image_beside_counts_and_is_cut_off(network: HiDreamTransformer) -> None:
    x = latent()
    drawn = draw(network, x, image_cond=latent(seed=5))
    assert drawn.shape == x.shape
    assert not torch.allclose(drawn, draw(network, x), atol=1e-4)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, num_experts=0, shared_width=0)], ids=["experts", "plain"])
def test_the_configuration_is_read_from_the_shapes(config: HiDreamConfig) -> None:
    network = HiDreamTransformer(config)
    assert hidream_config({name: tuple(item.shape) for name, item in network.state_dict().items()}) == config
    assert isinstance(network.get_submodule("double_stream_blocks.0.block.ff_i"), GatedFeedForward) is (
        config.num_experts == 0
    )
