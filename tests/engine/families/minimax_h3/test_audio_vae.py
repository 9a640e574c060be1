"""MiniMax H3's audio VAE: sizes from shapes, stereo channels one by one, filters that files may leave out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.families.minimax_h3.audio_vae import FILTERS, MiniMaxH3AudioVae, minimax_h3_audio_vae_config
from darkroom.engine.families.minimax_h3.vae_files import AUDIO_AUTOENCODER
from darkroom.engine.families.registry import names_of
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.alias_free import kaiser_sinc
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.settings import EngineSettings


@pytest.fixture(scope="module")
def network() -> MiniMaxH3AudioVae:
    torch.manual_seed(0)
    network = MiniMaxH3AudioVae(AUDIO_AUTOENCODER.sizes["small"]).requires_grad_(False).eval()
    for name, weight in network.named_parameters():
        if name.endswith(".filter"):
            weight.copy_(kaiser_sinc())
        elif name.endswith("latents_std") or (name.endswith("alpha") and "encoder" in name):
            weight.fill_(1.0)
        elif name.endswith(("alpha", "beta", "zero_k_bias", "latents_mean")):
            weight.zero_()
        elif name.endswith(("q_bias", "v_bias")):
            weight.normal_(std=0.1)
    return network


@pytest.fixture(scope="module")
def vae(network: MiniMaxH3AudioVae) -> AudioVae:
    made = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    assert isinstance(made, AudioVae)
    return made


@pytest.mark.parametrize("scale", ["full", "small"])
def test_shapes_tell_the_sizes(scale: str) -> None:
    with unfilled():
        built = AUDIO_AUTOENCODER.build(AUDIO_AUTOENCODER.sizes[scale])
    shapes = {name: tuple(weight.shape) for name, weight in built.state_dict().items()}
    names = names_of(AUDIO_AUTOENCODER, shapes)
    assert names is not None and set(names) == set(shapes)
    assert minimax_h3_audio_vae_config(shapes) == AUDIO_AUTOENCODER.configure(shapes) == built.config
    assert set(FILTERS) == {name for name in shapes if name.endswith(".filter")} and set(shapes) >= set(FILTERS)


def test_the_filters_of_a_file_without_them_are_those_of_the_paper() -> None:
    made = [make((1, 1, 12)) for make in AUDIO_AUTOENCODER.defaults.values()]
    assert len(made) == 254 and all(torch.equal(item, kaiser_sinc()) for item in made)


def test_audio_has_forty_latent_frames_a_second(vae: AudioVae) -> None:
    waveform = torch.rand(1, 8000, 2) * 2 - 1
    latent = vae.encode(waveform)
    assert latent.shape == (1, 32, 2, 10) and vae.sample_rate_hz == 32000
    decoded = vae.decode(latent[..., :1])
    assert decoded.shape == (1, 800, 2) and decoded.abs().max() <= 1.0
    assert vae.encode(waveform[:, :1700]).shape == (1, 32, 2, 2)  # cut to whole frames


def test_both_channels_pass_through_alone(vae: AudioVae) -> None:
    left, right = torch.rand(2, 1, 800, 1).unbind()
    both = vae.encode(torch.cat([left, right], dim=2))
    for index, channel in enumerate((left, right)):
        alone = vae.encode(channel)  # one channel is both
        torch.testing.assert_close(alone[:, :, 0], both[:, :, index])
        torch.testing.assert_close(alone[:, :, 1], both[:, :, index])
    swapped = vae.decode(both.flip(2))
    torch.testing.assert_close(swapped.flip(2), vae.decode(both))


def test_a_latent_frame_reads_no_later_ones_in_attention(network: MiniMaxH3AudioVae) -> None:
    hidden = torch.randn(1, 6, 512)
    changed = torch.cat([hidden[:, :5], torch.randn(1, 1, 512)], dim=1)
    first, second = (network.pre_block(item) for item in (hidden, changed))
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5], second[:, 5])


def test_stretches_of_both_channels_are_joined_along_time(vae: AudioVae) -> None:
    tiled = vae.decode_tiled(torch.randn(1, 32, 2, 3), tile_x=2, overlap=1)
    assert tiled.shape == (1, 2400, 2) and torch.isfinite(tiled).all()


def test_working_memory_follows_the_samples(network: MiniMaxH3AudioVae, vae: AudioVae) -> None:
    assert network.decode_bytes((1, 32, 2, 400)) > network.decode_bytes((1, 32, 2, 100)) > 0
    assert network.encode_bytes((1, 2, 320000)) > network.encode_bytes((1, 2, 32000)) > 0
    assert vae.memory_used_decode((1, 32, 2, 400), torch.float32) == 4 * network.decode_bytes((1, 32, 2, 400))
    assert vae.memory_used_encode((1, 2, 320000), torch.float16) == 2 * network.encode_bytes((1, 2, 320000))


def test_a_file_of_the_network_is_written_under_its_names(network: MiniMaxH3AudioVae, tmp_path: Path) -> None:
    saved = AUDIO_AUTOENCODER.saved(network.state_dict())
    write_safetensors(tmp_path / "a.safetensors", dict(saved))
    names = names_of(AUDIO_AUTOENCODER, {name: tuple(item.shape) for name, item in saved.items()})
    assert names is not None and set(names) == set(network.state_dict())
