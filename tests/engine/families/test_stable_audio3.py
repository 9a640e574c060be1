"""Stable Audio 3: windows and chunks of its autoencoders, padding of texts, kept audio, lengths of empty latents."""

from __future__ import annotations

from typing import TypeVar

import pytest
import torch

from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.stable_audio3 import vae as vae_module
from darkroom.engine.families.stable_audio3.denoiser import MAX_TEXT_TOKENS, StableAudio3Denoiser
from darkroom.engine.families.stable_audio3.t5_gemma import T5GemmaConfig, T5GemmaModel
from darkroom.engine.families.stable_audio3.transformer import (
    LEARNED_TIME,
    StableAudio3Config,
    StableAudio3Transformer,
    exponential_features,
)
from darkroom.engine.families.stable_audio3.vae import SAMPLES_PER_CELL, SameVae, SameVaeConfig
from tests.parity.layout import checkpoint_shapes

TINY = StableAudio3Config(
    hidden_size=64, num_layers=1, intermediate_size=32, context_dim=8, text_dim=64, in_channels=4, local_dim=5,
    num_memory_tokens=2,
)  # fmt: skip
LARGE = SameVaeConfig(hidden_size=64, num_layers=12, intermediate_size=32, latent_channels=8)
Network = TypeVar("Network", bound=torch.nn.Module)
SMALL = SameVaeConfig(hidden_size=64, num_layers=2, intermediate_size=32, latent_channels=8, kernel=3)


def with_random_weights(network: Network) -> Network:
    torch.manual_seed(0)
    for weight in network.requires_grad_(False).parameters():
        torch.nn.init.normal_(weight, 0, 0.2)
    return network.eval()


class Formats:
    """A model of which the latent format alone is asked."""

    def __init__(self, name: str) -> None:
        self.latent_format = registry.family_named(name).latent_format()

    def get_model_object(self, name: str) -> object:
        return getattr(self, name)


@pytest.mark.parametrize(("name", "cells"), [("stable_audio", 20), ("stable_audio3", 10), ("ace_step15", 23)])
def test_an_empty_latent_becomes_as_long_as_the_same_audio_is_in_cells_of_the_model(name: str, cells: int) -> None:
    empty = torch.zeros(2, 64, 20)
    fixed = fix_empty_latent_channels(Formats(name), empty, None, 2048)  # type: ignore[arg-type]
    assert fixed.shape == (2, Formats(name).latent_format.latent_channels, cells)


def test_a_latent_of_audio_keeps_its_length() -> None:
    model = Formats("stable_audio3")
    for latent, ratio in ((torch.ones(1, 256, 20), 2048), (torch.zeros(1, 256, 20), None)):
        assert fix_empty_latent_channels(model, latent, None, ratio) is latent  # type: ignore[arg-type]


@torch.no_grad()
def test_a_window_attends_as_a_mask_over_all_tokens_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vae_module, "QUERIES_AT_ONCE", 16)
    q, k, v = torch.randn(3, 2, 3, 75, 8).unbind()
    distances = (torch.arange(75)[None] - torch.arange(75)[:, None]).abs()
    mask = torch.zeros(75, 75).masked_fill(distances > 17, -1e30)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    torch.testing.assert_close(vae_module.attended_in_window(q, k, v), whole)


@torch.no_grad()
@pytest.mark.parametrize(("config", "cells"), [(LARGE, 3), (SMALL, 4)], ids=["large", "small"])
def test_audio_of_three_cells_is_encoded_and_decoded(config: SameVaeConfig, cells: int) -> None:
    vae = with_random_weights(SameVae(config))
    latent = vae.encode(torch.randn(1, 2, 3 * SAMPLES_PER_CELL))
    assert latent.shape == (1, 8, cells)
    audio = vae.decode(latent[:, :, :3])
    assert audio.shape == (1, 2, cells * SAMPLES_PER_CELL) and audio.std() > 0
    assert torch.equal(audio, vae.decode(latent[:, :, :3]))  # its noise is the same every time


@torch.no_grad()
def test_cells_beyond_the_windows_of_all_layers_do_not_change_the_audio() -> None:
    vae = with_random_weights(SameVae(LARGE))
    latent = torch.randn(1, 8, 26)
    changed = torch.cat([latent[:, :, :25], latent[:, :, 25:] + 1], dim=2)
    first, second = vae.decode(latent), vae.decode(changed)
    reached = 26 - 12 * 2  # 17 tokens a layer reach at most two cells
    assert torch.equal(first[..., : reached * SAMPLES_PER_CELL], second[..., : reached * SAMPLES_PER_CELL])
    assert not torch.equal(first, second)


def test_features_of_the_time_have_frequencies_from_a_half_to_ten_thousand() -> None:
    found = exponential_features(torch.tensor([0.25]))
    assert found.shape == (1, 256)
    torch.testing.assert_close(found[0, 0], torch.tensor(torch.pi * 0.25).cos())
    torch.testing.assert_close(found[0, 255], torch.tensor(2 * torch.pi * 10000 * 0.25).sin(), atol=2e-3, rtol=0)


def inputs_of(text: torch.Tensor, **more: torch.Tensor) -> dict[str, object]:
    denoiser = StableAudio3Denoiser(StableAudio3Transformer(TINY))
    found = denoiser.extra_conds(noise=torch.zeros(2, 4, 6), device=torch.device("cpu"), cross_attn=text, **more)
    return {name: item.cond for name, item in found.items()}


@torch.no_grad()
def test_a_text_is_padded_with_the_networks_own_embedding() -> None:
    text = torch.randn(1, 3, 8)
    inputs = inputs_of(text)
    context, lengths = inputs["c_crossattn"], inputs["text_lengths"]
    assert isinstance(context, torch.Tensor) and isinstance(lengths, torch.Tensor)
    assert context.shape == (1, MAX_TEXT_TOKENS, 8) and lengths.tolist() == [3]
    network = with_random_weights(StableAudio3Transformer(TINY))
    padding = network.get_parameter("conditioner.conditioners.prompt.padding_embedding")
    whole = torch.cat([text, padding.expand(1, MAX_TEXT_TOKENS - 3, -1)], dim=1)
    x, times = torch.randn(1, 4, 6), torch.tensor([0.5])
    padded = network(x, times, context, seconds_total=2.0, text_lengths=lengths)
    torch.testing.assert_close(padded, network(x, times, whole, seconds_total=2.0))
    assert not torch.allclose(padded, network(x, times, context, seconds_total=2.0))


def test_a_mask_says_what_is_kept_and_a_conditioning_gives_the_audio() -> None:
    mask, audio = torch.ones(1, 4, 6), torch.randn(1, 4, 6)
    mask[..., 2:] = 0
    kept = inputs_of(torch.randn(1, 3, 8), denoise_mask=mask, concat_latent_image=audio)["local_add_cond"]
    assert isinstance(kept, torch.Tensor) and kept.shape == (2, 5, 6)
    assert kept[0, 0].tolist() == [0, 0, 1, 1, 1, 1] and torch.equal(kept[1, 1:], audio[0])
    nothing = inputs_of(torch.randn(1, 3, 8))["local_add_cond"]
    assert isinstance(nothing, torch.Tensor) and not nothing.any()


def test_kept_audio_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[4, 5\], expected \[4, 6\]"):
        inputs_of(torch.randn(1, 3, 8), concat_latent_image=torch.zeros(1, 4, 5))


@torch.no_grad()
def test_the_text_encoder_attends_in_both_directions_but_not_to_padding() -> None:
    encoder = with_random_weights(
        T5GemmaModel(T5GemmaConfig(width=64, intermediate_size=32, num_layers=2, num_heads=1, num_key_heads=1,
                                   vocabulary_size=9))
    ).encoder  # fmt: skip
    rows = torch.randn(1, 5, 64)
    last = torch.cat([rows[:, :4], rows[:, 4:] + 1], dim=1)
    whole, part = torch.ones(1, 5), torch.tensor([[1.0, 1, 1, 1, 0]])
    assert not torch.allclose(encoder(rows, whole)[:, 0], encoder(last, whole)[:, 0])
    assert torch.equal(encoder(rows, part)[:, :4], encoder(last, part)[:, :4])


def test_a_network_with_learned_features_of_the_time_is_refused() -> None:
    shapes = dict(checkpoint_shapes(registry.family_named("stable_audio3"), "small"))
    shapes[f"model.model.{LEARNED_TIME}"] = (128, 1)
    found = registry.recognise(TensorIndex(shapes))
    with pytest.raises(NotRecognised, match="learned features of the time"):
        found.family.denoiser.configure(registry.shapes_under(found.match.names, shapes))
