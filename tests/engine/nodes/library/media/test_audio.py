"""Audio through graphs: saved in every format, loaded, edited, and refused with a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
import torch

from darkroom.contract.errors import PromptRejected
from darkroom.engine.media.video import Audio
from darkroom.engine.nodes.library.media import audio_editing as editing
from tests.engine.nodes.library.media.studio import Studio, of_class

context: Any = None


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    studio = Studio(tmp_path)
    yield studio
    studio.engine.close()


def audio(*channels: list[float], rate_hz: int = 8000) -> Audio:
    return {"waveform": torch.tensor([channels]), "sample_rate": rate_hz}


@pytest.mark.parametrize(
    ("class_type", "inputs", "codec"),
    [
        ("SaveAudio", {}, "flac"),
        ("SaveAudioMP3", {"quality": "V0"}, "mp3"),
        ("SaveAudioOpus", {"quality": "128k"}, "opus"),
        ("SaveAudioAdvanced", {"format": "flac"}, "flac"),
        ("SaveAudioAdvanced", {"format": "mp3", "format.quality": "320k"}, "mp3"),
        ("SaveAudioAdvanced", {"format": "opus", "format.quality": "64k"}, "opus"),
    ],
)
def test_audio_is_saved_with_its_prompt(studio: Studio, class_type: str, inputs: dict[str, Any], codec: str) -> None:
    result = studio.run(
        {
            "tone": of_class("Tone"),
            "save": of_class(class_type, audio=["tone", 0], filename_prefix="audio/x", **inputs),
        }
    )
    name = f"x_00001_.{codec}"
    assert result.outputs["save"] == {"audio": [{"filename": name, "subfolder": "audio", "type": "output"}]}
    with av.open(str(studio.settings.output_path / "audio" / name)) as container:
        stream = container.streams.audio[0]
        assert stream.codec.name in (codec, f"{codec}float", f"lib{codec}")
        assert json.loads({**container.metadata, **stream.metadata}["prompt"])["tone"]["class_type"] == "Tone"


def test_a_preview_lies_in_the_temporary_folder(studio: Studio) -> None:
    result = studio.run({"tone": of_class("Tone"), "show": of_class("PreviewAudio", audio=["tone", 0])})
    [path] = studio.files(result, "show")
    assert path.is_relative_to(studio.settings.temp_path) and path.suffix == ".flac"


@pytest.mark.parametrize("class_type", ["LoadAudio", "RecordAudio"])
def test_the_audio_of_a_file_is_loaded(studio: Studio, class_type: str) -> None:
    made = studio.run({"tone": of_class("Tone"), "save": of_class("SaveAudio", audio=["tone", 0], filename_prefix="x")})
    studio.files(made, "save")[0].rename(studio.settings.input_path / "tone.flac")
    prompt = {
        "load": of_class(class_type, audio="tone.flac"),
        "cut": of_class("TrimAudioDuration", audio=["load", 0], start_index=-0.5, duration=0.25),
        "save": of_class("SaveAudio", audio=["cut", 0], filename_prefix="cut"),
    }
    [path] = studio.files(studio.run(prompt), "save")
    with av.open(str(path)) as container:
        assert float(container.duration or 0) / av.time_base == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("content", "reason"), [(None, ""), (b"no audio", " (FFmpeg refuses it: ")])
def test_a_file_that_is_no_audio_is_refused_before_anything_runs(
    studio: Studio, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (studio.settings.input_path / "a.wav").write_bytes(content)
    with pytest.raises(PromptRejected) as caught:
        studio.engine.check(
            {"load": of_class("LoadAudio", audio="a.wav"), "show": of_class("PreviewAudio", audio=["load", 0])}
        )
    [entry] = caught.value.node_problems.values()
    assert f"Invalid audio file: a.wav{reason}" in entry.problems[0].details


def test_audio_and_videos_are_offered(studio: Studio) -> None:
    for name in ("b.wav", "a.mp4", "c.png"):
        (studio.settings.input_path / name).touch()
    declared = studio.engine.object_info("LoadAudio")["LoadAudio"]["input"]["required"]["audio"]
    assert declared == ["COMBO", {"multiselect": False, "options": ["a.mp4", "b.wav"], "audio_upload": True}]


def test_silence_has_the_length_asked_for(studio: Studio) -> None:
    prompt = {
        "empty": of_class("EmptyAudio", duration=0.5, sample_rate=8000, channels=1),
        "show": of_class("PreviewAudio", audio=["empty", 0]),
    }
    [path] = studio.files(studio.run(prompt), "show")
    with av.open(str(path)) as container:
        assert float(container.duration or 0) / av.time_base == 0.5


def test_silence_that_no_memory_holds_is_refused(studio: Studio) -> None:
    prompt = {
        "empty": of_class("EmptyAudio", duration=1e18, sample_rate=44100, channels=2),
        "show": of_class("PreviewAudio", audio=["empty", 0]),
    }
    assert studio.run(prompt).status == "error"
    assert "expected audio that fits into memory" in str(studio.events)


@pytest.mark.parametrize(
    ("start", "duration", "expected"),
    [(0.0, 0.5, [0.0, 0.1]), (0.25, 9.0, [0.1, 0.2, 0.3]), (-0.5, 0.25, [0.2]), (-9.0, 0.25, [0.0])],
)
def test_a_cut_counts_in_seconds_from_either_end(start: float, duration: float, expected: list[float]) -> None:
    whole = audio([0.0, 0.1, 0.2, 0.3], rate_hz=4)
    cut = editing.trim_audio_duration(context, audio=whole, start_index=start, duration=duration)
    assert cut["waveform"][0, 0].tolist() == pytest.approx(expected)


def test_a_cut_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is left; got start_index 0 s, duration 0 s"):
        editing.trim_audio_duration(context, audio=audio([0.0, 0.1]), start_index=0.0, duration=0.0)


def test_stereo_is_split_and_mono_is_not() -> None:
    left, right = editing.split_audio_channels(context, audio=audio([1.0], [2.0]))
    assert (left["waveform"].item(), right["waveform"].item()) == (1.0, 2.0)
    with pytest.raises(ValueError, match="got 1 channels, expected 2"):
        editing.split_audio_channels(context, audio=audio([1.0]))


@pytest.mark.parametrize(("direction", "expected"), [("after", [0.1, 0.2, 0.3]), ("before", [0.3, 0.1, 0.2])])
def test_audio_is_joined_as_stereo(direction: str, expected: list[float]) -> None:
    first, second = audio([0.1, 0.2]), audio([0.3], [0.4])
    joined = editing.audio_concat(context, audio1=first, audio2=second, direction=direction)
    assert joined["waveform"].shape == (1, 2, 3)
    assert joined["waveform"][0, 0].tolist() == pytest.approx(expected)


def test_audio_of_two_rates_is_joined_at_the_higher() -> None:
    joined = editing.audio_concat(
        context, audio1=audio([0.0] * 100, rate_hz=8000), audio2=audio([0.0] * 100, rate_hz=16000), direction="after"
    )
    assert joined["sample_rate"] == 16000 and joined["waveform"].shape[-1] == 300


@pytest.mark.parametrize(
    ("method", "expected"),
    [("add", [0.5, 0.5]), ("subtract", [0.25, 0.5]), ("multiply", [0.046875, 0.0]), ("mean", [0.25, 0.25])],
)
def test_audio_is_mixed_over_the_length_of_the_first(method: str, expected: list[float]) -> None:
    mixed = editing.audio_merge(context, audio1=audio([0.375, 0.5]), audio2=audio([0.125]), merge_method=method)
    assert mixed["waveform"][0, 0].tolist() == pytest.approx(expected)


def test_a_mix_that_would_clip_is_made_quieter() -> None:
    mixed = editing.audio_merge(context, audio1=audio([0.8, 0.4]), audio2=audio([0.8, 0.0, 0.9]), merge_method="add")
    assert mixed["waveform"][0, 0].tolist() == pytest.approx([1.0, 0.25])


@pytest.mark.parametrize(("decibels", "factor"), [(0, 1.0), (20, 10.0), (-6, 10 ** (-6 / 20))])
def test_volume_is_in_decibels(decibels: int, factor: float) -> None:
    louder = editing.audio_adjust_volume(context, audio=audio([0.1]), volume=decibels)
    assert math.isclose(louder["waveform"].item(), 0.1 * factor, rel_tol=1e-6)


def test_two_mono_audios_become_stereo_at_the_higher_rate_and_the_shorter_length() -> None:
    left, right = audio([0.1] * 100, rate_hz=8000), audio([0.2] * 150, rate_hz=16000)
    joined = editing.join_audio_channels(context, audio_left=left, audio_right=right)
    assert joined["sample_rate"] == 16000 and joined["waveform"].shape == (1, 2, 150)
    with pytest.raises(ValueError, match="audio_left: not mono; got 2 channels"):
        editing.join_audio_channels(context, audio_left=joined, audio_right=right)


def sine(frequency_hz: float, rate_hz: int = 16000) -> Audio:
    time = torch.arange(rate_hz) / rate_hz * 2 * math.pi
    return {"waveform": torch.sin(time * frequency_hz)[None, None] * 0.1, "sample_rate": rate_hz}


@pytest.mark.parametrize(
    ("frequency_hz", "gains", "expected_db"),
    [
        (30.0, {"low_gain_dB": 6.0}, 6.0),
        (30.0, {"high_gain_dB": 6.0}, 0.0),
        (1000.0, {"mid_gain_dB": -12.0}, -12.0),
        (7500.0, {"high_gain_dB": -6.0}, -6.0),
        (7500.0, {"low_gain_dB": -6.0}, 0.0),
        (7500.0, {}, 0.0),
    ],
)
def test_a_band_is_raised_and_lowered_alone(frequency_hz: float, gains: dict[str, float], expected_db: float) -> None:
    given = sine(frequency_hz)
    made = editing.audio_equalizer_3_band(context, audio=given, **gains)
    settled = slice(given["sample_rate"] // 2, None)  # behind what the filter swings in
    ratio = made["waveform"][..., settled].std() / given["waveform"][..., settled].std()
    assert 20 * math.log10(float(ratio)) == pytest.approx(expected_db, abs=0.3)
