"""T5's encoder: buckets of distances and attention by their definitions, padding, and the layer that is asked for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from darkroom.engine.layers.t5 import FARTHEST, T5Attention, T5Config, T5Model, distance_buckets, t5_config

CONFIG = T5Config(num_layers=3, width=16, heads=2, inner_width=24, vocabulary_size=32)


def bucket(distance: int) -> int:
    """The bucket of one distance (Raffel et al. 2019, 2.1): 32 of them, half for each direction."""
    side, far = (16 if distance > 0 else 0), abs(distance)
    if far < 8:
        return side + far
    return side + min(15, 8 + int(8 * math.log(far / 8) / math.log(FARTHEST / 8)))


def model(config: T5Config = CONFIG) -> T5Model:
    torch.manual_seed(0)
    made = T5Model(config).requires_grad_(False)
    for weight in made.parameters():
        weight.normal_(0.0, 0.3)
    return made


def test_every_distance_has_the_bucket_of_the_definition() -> None:
    found = distance_buckets(200)
    expected = [[bucket(other - own) for other in range(200)] for own in (0, 100, 199)]
    # float32 logarithms may fall on the other side of a whole number only where the distance is a power of two.
    different = [
        (own, other)
        for row, own in enumerate((0, 100, 199))
        for other in range(200)
        if found[own, other] != expected[row][other]
    ]
    assert all(math.log2(abs(other - own)).is_integer() for own, other in different)
    assert found.min() == 0 and found.max() == 31 and found[3, 3] == 0


def test_attention_is_the_softmax_of_unscaled_scores_and_bias() -> None:
    torch.manual_seed(0)
    layer = T5Attention(CONFIG, is_biased=True).requires_grad_(False)
    x = torch.randn(1, 5, 16)
    q, k, v = (part(x).view(5, 2, 64).transpose(0, 1) for part in (layer.q, layer.k, layer.v))
    scores = q @ k.transpose(1, 2) + layer.bias(5, x)[0]
    expected = layer.o((scores.softmax(-1) @ v).transpose(0, 1).reshape(1, 5, 128))
    torch.testing.assert_close(layer(x, layer.bias(5, x)), expected, atol=1e-5, rtol=1e-5)


def test_the_first_layers_bias_serves_all_others() -> None:
    encoder = model().encoder
    names = [name for name in encoder.state_dict() if "relative_attention_bias" in name]
    assert names == ["block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    x = torch.randn(1, 6, 16)
    before = encoder(x)
    encoder.get_parameter(names[0]).add_(5 * torch.randn(32, 2))
    assert not torch.allclose(encoder(x), before, atol=1e-3)


def test_tokens_that_are_masked_change_nothing() -> None:
    encoder, x = model().encoder, torch.randn(1, 6, 16)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    other = x.clone()
    other[:, 4:] = torch.randn(1, 2, 16)
    torch.testing.assert_close(encoder(x, mask)[:, :4], encoder(other, mask)[:, :4])
    torch.testing.assert_close(encoder(x, mask)[:, :4], encoder(x[:, :4]), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(encoder(x)[:, :4], encoder(x[:, :4]), atol=1e-3)


@pytest.mark.parametrize(("layer", "kept"), [(-2, 2), (0, 1), (None, 3)])
def test_a_chosen_layer_is_the_last_of_a_shorter_network(layer: int | None, kept: int) -> None:
    whole, x = model(), torch.randn(1, 4, 16)
    shorter = model(replace(CONFIG, num_layers=kept))
    shorter.load_state_dict({name: whole.state_dict()[name] for name in shorter.state_dict()})
    assert torch.equal(whole.encoder(x, layer=layer), shorter.encoder(x))


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_configuration_is_read_from_the_shapes(everywhere: bool) -> None:
    config = T5Config(2, 16, 2, 24, vocabulary_size=32, is_biased_everywhere=everywhere)
    assert t5_config({name: tuple(item.shape) for name, item in T5Model(config).state_dict().items()}) == config
