"""Files of audio encoders: known by their tensors, refused by name, and what they make of audio."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.kinds.audio_encoder_value import AudioEncoder
from darkroom.engine.models.kinds.load_audio_encoder import load_audio_encoder
from darkroom.engine.models.kinds.wav2vec import Wav2Vec
from darkroom.engine.models.kinds.whisper import Whisper, log_mel_spectrogram
from darkroom.engine.settings import EngineSettings
from tests.parity.models import LAYOUTS, read_layouts, write_model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("audio")
    return {item.name: write_model(item, folder) for item in read_layouts(LAYOUTS) if item.family == "audio"}


def encoder_of(path: Path) -> AudioEncoder:
    network = load_audio_encoder(path, torch.float32)
    return AudioEncoder(ModelMemory(EngineSettings(cpu=True)).keep(path.name, network, role="vision"))


def test_the_kind_of_an_encoder_is_read_from_its_tensors(files: dict[str, Path]) -> None:
    large, small, whisper = (load_audio_encoder(files[name], torch.float16) for name in
                             ("wav2vec_large", "wav2vec_base", "whisper_small"))  # fmt: skip
    assert isinstance(large, Wav2Vec) and large.config.is_large and large.config.has_conv_bias
    assert isinstance(small, Wav2Vec) and not small.config.is_large and not small.config.has_conv_bias
    assert isinstance(whisper, Whisper) and whisper.config.num_layers == 32
    assert large.get_parameter("encoder.layers.0.attention.q_proj.weight").dtype == torch.float16
    assert large.encoder.pos_conv_embed.conv.weight_v.dtype == torch.float32


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"first_stage_model.decoder.conv_in.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadModelFile, match=r"other\.safetensors.*expected an audio encoder"):
        load_audio_encoder(tmp_path / "other.safetensors", torch.float16)
    save_file({"encoder.pos_conv_embed.conv.bias": torch.zeros(1)}, tmp_path / "half.safetensors")
    with pytest.raises(BadModelFile, match="no tensor 'encoder.layers.0.feed_forward.intermediate_dense.weight'"):
        load_audio_encoder(tmp_path / "half.safetensors", torch.float16)


def test_audio_of_another_rate_is_heard_at_sixteen_kilohertz(files: dict[str, Path]) -> None:
    encoder = encoder_of(files["wav2vec_base"])
    torch.manual_seed(0)
    audio = torch.randn(1, 2, 22050) * 0.1
    heard = encoder.encode_audio(audio, 22050)
    assert heard["audio_samples"] == 16000
    assert [tuple(state.shape) for state in heard["encoded_audio_all_layers"]] == [(1, 49, 64)] * 4
    mono = encoder.encode_audio(audio.mean(dim=1, keepdim=True), 22050)
    torch.testing.assert_close(mono["encoded_audio"], heard["encoded_audio"])


@pytest.mark.parametrize("num_samples", [0, 399])
def test_audio_without_a_feature_is_refused(files: dict[str, Path], num_samples: int) -> None:
    with pytest.raises(ValueError, match=f"audio: too short; got {num_samples} samples at 16000 Hz, expected at least"):
        encoder_of(files["wav2vec_large"]).encode_audio(torch.zeros(1, 1, num_samples), 16000)


def test_a_spectrogram_shows_a_tone_in_its_band() -> None:
    times = torch.arange(16000) / 16000
    spectrogram = log_mel_spectrogram(torch.sin(2 * torch.pi * 1000 * times)[None], 128)
    assert spectrogram.shape == (1, 128, 100)
    loudest = spectrogram[0, :, 10:90].mean(dim=1).argmax()
    assert 40 <= int(loudest) <= 46  # 1000 Hz is 15 of 45.2 mels up to 8000 Hz
