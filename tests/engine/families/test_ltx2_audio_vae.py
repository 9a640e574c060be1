"""The audio VAE of LTX-2 and its vocoders: what metadata tell, stretches of time, rates and lengths, its nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.ltx2.audio_vae import Ltx2AudioVae, Ltx2AudioVaeConfig
from darkroom.engine.families.ltx2.audio_vae_files import AUDIO_AUTOENCODER, as_described, description
from darkroom.engine.families.ltx2.bandwidth_extension import ExtendedVocoderConfig, interpolated
from darkroom.engine.families.ltx2.filtered_activations import FilteredSnake
from darkroom.engine.families.ltx2.nodes.audio_vae import (
    ltxv_audio_vae_decode,
    ltxv_audio_vae_encode,
    ltxv_empty_latent_audio,
)
from darkroom.engine.families.ltx2.spectrogram_autoencoder import SpectrogramHalfConfig
from darkroom.engine.families.ltx2.vocoder import VocoderConfig
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.pixel_space import PixelSpace
from darkroom.engine.media.resample import resample
from darkroom.engine.models.load import LoadTypes, load_further_vae
from darkroom.engine.models.stretched_audio_vae import StretchedAudioVae
from darkroom.engine.models.vae_of import vae_of
from tests.engine.nodes.small_store import small_store

HALF = SpectrogramHalfConfig(channels=8, num_blocks=1)
FIRST = VocoderConfig(8, (4, 2), (8, 4), (3, 7), ((1, 3, 5),) * 2)
LATER = VocoderConfig(
    4, (5, 4), (11, 8), (3,), ((1, 3, 5),), kind="AMP1", has_magnitude=True, has_last_bias=False, ending="clamp"
)
SINGLE = VocoderConfig(32, (8, 5, 4), (16, 15, 8), dilations=((1, 3),) * 3, kind="2", sample_rate_hz=22050)
PLAIN = Ltx2AudioVaeConfig(HALF, HALF, FIRST)
EXTENDED = Ltx2AudioVaeConfig(
    HALF, replace(HALF, ends_with_tanh=True),
    ExtendedVocoderConfig(
        LATER, replace(LATER, rates=(3, 2), kernels=(7, 4), ending="none"), window=16, hop=2, num_bands=64,
        in_rate_hz=2000, out_rate_hz=6000,
    ),
)  # fmt: skip
CONFIGS = [PLAIN, EXTENDED, Ltx2AudioVaeConfig(HALF, HALF, SINGLE), AUDIO_AUTOENCODER.sizes["full"]]


def metadata_of(config: Ltx2AudioVaeConfig) -> dict[str, str]:
    return {name: json.dumps(fields) for name, fields in description(config).items()}


def network_of(config: Ltx2AudioVaeConfig) -> Ltx2AudioVae:
    """A network of random weights, whose filters let constants pass."""
    torch.manual_seed(0)
    network = Ltx2AudioVae(config).requires_grad_(False).eval()
    for name, weight in network.named_parameters():
        torch.nn.init.normal_(weight, 0, 0.08)
        if name.endswith(".filter"):
            weight.copy_(torch.hann_window(12) / 6)
        elif name.endswith("std-of-means") or name.endswith("basis"):
            weight.abs_().add_(0.1)
    return network


@pytest.mark.parametrize("config", CONFIGS)
def test_metadata_tell_the_networks(config: Ltx2AudioVaeConfig) -> None:
    assert as_described(None, metadata_of(config)) == config


def test_the_sample_rate_follows_from_the_vocoder() -> None:
    assert AUDIO_AUTOENCODER.sizes["full"].out_rate_hz == 24000
    assert EXTENDED.out_rate_hz == 6000
    assert CONFIGS[2].out_rate_hz == 22050


def _changed(part: str, name: str, value: object) -> str:
    described: Any = description(PLAIN)
    target = described["config"][part]
    target = target["model"]["params"]["encoder"] if part == "audio_vae" else target
    target[name] = value
    return json.dumps(described["config"])


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("{", "do not describe it"),
        ("{}", "no 'audio_vae'"),
        ('{"audio_vae": 3, "vocoder": {}}', "do not describe it"),
        (_changed("audio_vae", "norm_type", "group"), "norms of another kind, 'group'"),
        (_changed("audio_vae", "causality_axis", "width"), "not causal along time"),
        (_changed("audio_vae", "mid_block_add_attention", True), "attention"),
        (_changed("audio_vae", "ch_mult", [1, 2]), "2 levels"),
        (_changed("audio_vae", "num_res_blocks", 10**9), "expected 1 to 12"),
        (_changed("audio_vae", "ch", 10**9), "expected 1 to 8192"),
        (_changed("vocoder", "resblock", "3"), "other blocks, '3'"),
        (_changed("vocoder", "upsample_rates", [2] * 13), "expected 1 to 12"),
        (_changed("vocoder", "upsample_kernel_sizes", [16, True]), "expected 1 to 8192"),
        (_changed("vocoder", "resblock_dilation_sizes", [[1]]), "dilations"),
    ],
)
def test_metadata_of_other_networks_are_refused(described: str, message: str) -> None:
    with pytest.raises(NotRecognised, match=message):
        as_described(None, {"config": described})


@pytest.mark.parametrize("config", [PLAIN, EXTENDED])
@torch.no_grad()
def test_stretches_of_time_are_those_of_the_whole(config: Ltx2AudioVaeConfig) -> None:
    network = network_of(config)
    latents = torch.randn(1, 8, 24, 16)
    whole = network.decode(latents, 1000)
    assert whole.shape == (1, 2, (4 * 24 - 3) * config.vocoder.samples_per_frame)
    assert whole.std() > 1e-3
    torch.testing.assert_close(network.decode(latents, 13), whole, rtol=1e-3, atol=1e-5)
    waveform = torch.rand(1, 2, 32000) * 2 - 1
    encoded = network.encode(waveform, 1000)
    assert encoded.shape == (1, 8, 51, 16)
    torch.testing.assert_close(network.encode(waveform, 40), encoded, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_no_latent_depends_on_later_audio() -> None:
    network = network_of(PLAIN)
    first, other = torch.rand(2, 1, 2, 16000)
    other[..., :8000] = first[..., :8000]
    same = (network.encode(first) - network.encode(other)).abs().amax(dim=(0, 1, 3)) < 1e-6
    assert same[:11].all() and not same[13:].any()


def test_working_memory_stops_growing_with_the_length() -> None:
    network = Ltx2AudioVae(PLAIN)
    hour = network.decode_bytes((1, 8, 90000, 16))
    assert network.decode_bytes((1, 8, 100, 16)) < network.decode_bytes((1, 8, 250, 16)) < hour
    assert hour < 1.5 * network.decode_bytes((1, 8, 1000, 16)) + 90000 * 8 * PLAIN.vocoder.samples_per_frame
    assert network.encode_bytes((1, 2, 16000 * 3600)) < network.encode_bytes((1, 2, 16000 * 60)) + 16000 * 3600 * 4


def test_the_waveform_is_interpolated_as_it_is_resampled() -> None:
    waveform = torch.rand(1, 2, 400)
    torch.testing.assert_close(
        interpolated(waveform, 3)[..., 60:-60], resample(waveform, 16000, 48000)[..., 60:-60], rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_a_filtered_activation_keeps_constants_constant() -> None:
    layer = FilteredSnake(2, has_magnitude=True).requires_grad_(False)
    alpha, beta = torch.tensor([0.0, 0.5]), torch.tensor([0.3, 0.1])
    for name, parameter in layer.named_parameters():
        parameter.copy_({"act.alpha": alpha, "act.beta": beta}.get(name, torch.full((12,), 1 / 12)))
    x = torch.tensor([0.7, -0.4])[None, :, None].expand(1, 2, 40)
    expected = x + torch.sin(x * alpha.exp()[:, None]) ** 2 / beta.exp()[:, None]
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["audio_vae.", "autoencoder."])
def test_a_checkpoint_gives_its_audio_vae(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = replace(registry.family_named("ltx_video"), further_vaes=(AUDIO_AUTOENCODER,))
    monkeypatch.setattr(registry, "families", lambda: (owner,))
    weights = network_of(EXTENDED).state_dict()
    saved = {name.replace("audio_vae.", prefix): item for name, item in AUDIO_AUTOENCODER.saved(weights).items()}
    path = tmp_path / "ltx2.safetensors"
    write_safetensors(path, {**saved, "vae.other": torch.zeros(3)}, metadata_of(EXTENDED))
    loaded = load_further_vae(path, LoadTypes(vae=torch.float32))
    assert loaded.config == EXTENDED
    assert all(torch.equal(loaded.state_dict()[name], item) for name, item in weights.items())


def test_a_file_without_an_audio_vae_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    write_safetensors(path, {"a.weight": torch.zeros(3)}, {})
    with pytest.raises(BadModelFile, match="a checkpoint with an audio VAE"):
        load_further_vae(path, LoadTypes())


@pytest.fixture
def vae(tmp_path: Path) -> StretchedAudioVae:
    made = vae_of(small_store(tmp_path).files.keep("vae", "audio", network_of(PLAIN)))
    assert isinstance(made, StretchedAudioVae)
    return made


@pytest.mark.parametrize(
    ("frames", "frame_rate", "cells"), [(9, 25.0, 9), (97, 24.0, 101), (121, 30, 101), (1, 1000.0, 0)]
)
def test_an_empty_latent_is_as_long_as_the_video(
    vae: StretchedAudioVae, frames: int, frame_rate: float, cells: int
) -> None:
    context: Any = None
    latent = ltxv_empty_latent_audio(context, frames_number=frames, frame_rate=frame_rate, batch_size=2, audio_vae=vae)
    assert latent["samples"].shape == (2, 8, cells, 16) and not latent["samples"].any()
    assert latent["type"] == "audio"


def test_audio_of_any_rate_is_encoded_and_decoded(vae: StretchedAudioVae) -> None:
    context: Any = None
    tone = torch.sin(torch.arange(24000) / 20)[None, None]
    latent = ltxv_audio_vae_encode(context, audio={"waveform": tone, "sample_rate": 24000}, audio_vae=vae)
    # A second at 44.1 kHz, cut to 10 times 4096 samples: 93 frames of the spectrogram.
    assert latent["samples"].shape == (1, 8, 24, 16)
    stereo = ltxv_audio_vae_encode(
        context, audio={"waveform": tone.repeat(1, 3, 1), "sample_rate": 24000}, audio_vae=vae
    )
    torch.testing.assert_close(stereo["samples"], latent["samples"])
    audio = ltxv_audio_vae_decode(context, samples=latent, audio_vae=vae)
    assert audio["sample_rate"] == 800
    assert audio["waveform"].shape == (1, 2, (4 * 24 - 3) * 8)
    torch.testing.assert_close(
        vae.decode_tiled(latent["samples"], tile_x=4).movedim(-1, 1), audio["waveform"], rtol=1e-3, atol=1e-5
    )
    waveform = resample(tone, 24000, 44100).movedim(1, -1)
    torch.testing.assert_close(vae.encode_tiled(waveform, tile_x=9000), latent["samples"], rtol=1e-3, atol=1e-5)


def test_another_vae_is_refused(tmp_path: Path) -> None:
    context: Any = None
    of_images = vae_of(small_store(tmp_path).files.keep("vae", "pixels", PixelSpace().eval()))
    with pytest.raises(ValueError, match="audio_vae: another VAE"):
        ltxv_empty_latent_audio(context, frames_number=9, frame_rate=25.0, batch_size=1, audio_vae=of_images)


def test_weights_of_all_sizes_are_what_files_have() -> None:
    with unfilled():
        names = set(Ltx2AudioVae(EXTENDED).state_dict())
    assert {"autoencoder.per_channel_statistics.std-of-means", "vocoder.mel_stft.stft_fn.forward_basis"} <= names
    assert "vocoder.bwe_generator.conv_post.bias" not in names
