"""Videos after audio: the steps that each frame hears, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.wan.denoiser import AudioVideoDenoiser, SpeechVideoDenoiser
from darkroom.engine.families.wan.nodes.audio import audio_steps, speech_windows
from darkroom.engine.models.kinds.audio_encoder_value import AudioEncoderOutput


def heard(num_layers: int, num_features: int, batch: int = 1) -> AudioEncoderOutput:
    """Return features that count up, of 50 a second."""
    ramp = torch.arange(num_features, dtype=torch.float32).view(1, -1, 1).expand(batch, -1, 2)
    return {
        "encoded_audio": ramp,
        "encoded_audio_all_layers": (ramp,) * num_layers,
        "audio_samples": num_features * 320,
    }


def test_a_frame_hears_the_step_of_its_time_and_nothing_behind_the_audio() -> None:
    steps = audio_steps(heard(3, 50), 12)
    assert steps.shape == (1, 3, 2, 24)  # a second is 16 frames: two videos of 12
    assert (steps[..., 1:16] > steps[..., :15]).all()
    assert (steps[..., 16:] == 0).all()


def test_a_latent_frame_hears_two_steps_on_either_side() -> None:
    windows = speech_windows(heard(33, 100), 9)
    assert windows.shape == (1, 3, 8, 5, 2)
    first, second, _ = windows[0, :, :, 0, 0]
    assert (first[:6] == 0).all() and (first[6:] > 0).all()  # nothing before the audio, whose first feature is 0
    assert second[0] == 0 and (second[1:].diff() > 0).all()


def test_a_short_encoder_and_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="of another audio encoder; got 24 layers, expected those of Whisper large v3"):
        speech_windows(heard(25, 100), 9)
    with pytest.raises(ValueError, match="a batch of audio; got 2, expected one"):
        audio_steps(heard(3, 50, batch=2), 12)
    with pytest.raises(ValueError, match="too short; got 1 features"):
        audio_steps(heard(3, 1), 12)


class Network(torch.nn.Module):
    in_channels = 16

    class config:  # noqa: N801 - an attribute of networks
        audio_layers, audio_dim, speech_dim = 25, 1024, 1280


def inputs_of(kind: Any, **given: Any) -> dict[str, Any]:
    denoiser = kind(Network())
    denoiser.latent_format = registry.family_named("wan").latent_format()
    noise = torch.zeros(1, 16, 3, 4, 6)
    found: dict[str, Any] = denoiser.extra_conds(noise=noise, device=noise.device, **given)
    return found


def test_audio_of_another_encoder_is_refused_before_sampling() -> None:
    with pytest.raises(ValueError, match="got 13 layers 768 wide, expected 25 layers 1024 wide"):
        inputs_of(AudioVideoDenoiser, audio_embed=torch.zeros(1, 13, 768, 12))
    with pytest.raises(ValueError, match="got 5 layers 64 wide, expected 5 layers 1280 wide"):
        inputs_of(SpeechVideoDenoiser, audio_embed=torch.zeros(1, 3, 8, 5, 64))


def test_earlier_frames_need_eight_cells_a_side() -> None:
    with pytest.raises(ValueError, match="too small for a video with earlier frames; got 32 pixels"):
        inputs_of(AudioVideoDenoiser, reference_motion=torch.zeros(1, 16, 19, 4, 6))
