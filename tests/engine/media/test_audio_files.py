"""Audio through files: the same samples, rates and tags, and refusals that name what is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import av
import pytest
import torch

from darkroom.engine.media.audio_files import (
    FLAC,
    MP3,
    OPUS,
    AudioFormat,
    NoAudio,
    audio_frame,
    join_frames,
    read_audio,
    write_audio,
)
from darkroom.engine.media.faults import check_audio
from darkroom.engine.media.opened import BadMedia


def stereo(rate_hz: int, seconds: float = 1.0) -> torch.Tensor:
    """Return another tone in each channel, [2, S]."""
    time = torch.arange(int(rate_hz * seconds)) / rate_hz * 2 * math.pi
    return torch.stack([torch.sin(time * 440), torch.sin(time * 660)]) * 0.5


def written_wav(path: Path, waveform: torch.Tensor, rate_hz: int, codec: str, sample_format: str) -> Path:
    layout = "stereo" if len(waveform) == 2 else "mono"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate_hz, layout=layout)
        frame = av.AudioFrame.from_ndarray(waveform.t().reshape(1, -1).numpy(), format=sample_format, layout=layout)
        frame.sample_rate = rate_hz
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_flac_gives_back_the_samples_of_16_bits_with_their_tags(tmp_path: Path) -> None:
    path, waveform = tmp_path / "a.flac", stereo(44100)
    write_audio(path, waveform, 44100, FLAC, "", {"prompt": '{"1": {}}'})
    found, rate_hz = read_audio(path)
    assert (found.shape, found.dtype, rate_hz) == (waveform.shape, torch.float32, 44100)
    assert (found - waveform).abs().max() <= 1 / 2**15
    with av.open(str(path)) as container:
        assert container.metadata["prompt"] == '{"1": {}}'


def test_mono_audio_stays_mono(tmp_path: Path) -> None:
    waveform = stereo(44100)[:1]
    write_audio(tmp_path / "a.flac", waveform, 44100, FLAC, "", {})
    found, _ = read_audio(tmp_path / "a.flac")
    assert found.shape == waveform.shape and (found - waveform).abs().max() <= 1 / 2**15


@pytest.mark.parametrize("quality", ["V0", "128k", "320k"])
def test_mp3_keeps_the_audio(tmp_path: Path, quality: str) -> None:
    path, waveform = tmp_path / "a.mp3", stereo(44100)
    write_audio(path, waveform, 44100, MP3, quality, {})
    found, rate_hz = read_audio(path)
    assert rate_hz == 44100 and (found[:, : waveform.shape[1]] - waveform).square().mean().sqrt() < 0.02


@pytest.mark.parametrize(("rate_hz", "expected_hz"), [(8000, 48000), (22050, 48000), (44100, 48000), (96000, 48000)])
def test_opus_is_stored_at_a_rate_it_has(tmp_path: Path, rate_hz: int, expected_hz: int) -> None:
    path, waveform = tmp_path / "a.opus", stereo(rate_hz)
    write_audio(path, waveform, rate_hz, OPUS, "128k", {})
    found, found_hz = read_audio(path)
    assert found_hz == expected_hz  # decoders of Opus give 48 kHz for any
    assert abs(found.shape[1] / found_hz - 1.0) < 0.02


@pytest.mark.parametrize(("kind", "low", "high"), [(MP3, "128k", "320k"), (OPUS, "64k", "320k")])
def test_a_higher_bit_rate_takes_more_bytes(tmp_path: Path, kind: AudioFormat, low: str, high: str) -> None:
    sizes = []
    for quality in (low, high):
        path = tmp_path / f"{quality}{kind.suffix}"
        write_audio(path, torch.rand(2, 48000) - 0.5, 48000, kind, quality, {})
        sizes.append(path.stat().st_size)
    assert sizes[1] > 2 * sizes[0]


@pytest.mark.parametrize(
    ("codec", "sample_format", "scale", "dtype"),
    [
        ("pcm_s16le", "s16", 2**15, torch.int16),
        ("pcm_s32le", "s32", 2**31, torch.int32),
        ("pcm_f32le", "flt", 1, torch.float32),
        ("pcm_f64le", "dbl", 1, torch.float64),
    ],
)
def test_samples_of_every_type_become_floats_channel_by_channel(
    tmp_path: Path, codec: str, sample_format: str, scale: int, dtype: torch.dtype
) -> None:
    waveform = torch.tensor([[0.0, 0.25, 0.5, -0.5], [0.125, -0.25, 0.0, -1.0]])
    path = written_wav(tmp_path / "a.wav", (waveform.double() * scale).to(dtype), 8000, codec, sample_format)
    found, rate_hz = read_audio(path)
    assert rate_hz == 8000 and torch.equal(found, waveform)


def test_samples_of_8_bits_lie_around_zero(tmp_path: Path) -> None:
    waveform = torch.tensor([[0, 64, 128, 255]], dtype=torch.uint8)
    found, _ = read_audio(written_wav(tmp_path / "a.wav", waveform, 8000, "pcm_u8", "u8"))
    assert found.tolist() == [[-1.0, -0.5, 0.0, 127 / 128]]


def test_audio_too_long_for_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.flac", stereo(44100, 2.0), 44100, FLAC, "", {})
    said = r"too long for the free memory; got 176400 samples \(2 s of 2 channels at 44100 Hz\), expected at most 50000"
    with pytest.raises(BadMedia, match=said):
        read_audio(tmp_path / "a.flac", max_bytes=600_000)


def test_audio_of_more_samples_than_are_declared_is_refused_while_it_is_read(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.flac", stereo(44100, 2.0), 44100, FLAC, "", {})
    with av.open(str(tmp_path / "a.flac")) as container, pytest.raises(BadMedia, match="got at least .* samples"):
        join_frames(container.decode(audio=0), 600_000)


def test_seconds_rate_and_channels_together_are_what_audio_takes(tmp_path: Path) -> None:
    """A file of 100 KB may declare gigabytes; its check reads the header alone."""
    path = tmp_path / "a.flac"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=655_350, layout="7.1")
        container.mux(stream.encode(audio_frame(torch.zeros(8, 65_535), 655_350, "7.1")))
        container.mux(stream.encode(None))
    content = bytearray(path.read_bytes())
    streaminfo = content.index(b"fLaC") + 8
    packed = int.from_bytes(content[streaminfo + 10 : streaminfo + 18], "big")
    content[streaminfo + 10 : streaminfo + 18] = (packed >> 36 << 36 | 300 * 655_350).to_bytes(8, "big")
    path.write_bytes(content)
    for read in (read_audio, check_audio):
        with pytest.raises(BadMedia, match=r"1572840000 samples \(300 s of 8 channels at 655350 Hz\)"):
            read(path, 8 << 30)


def test_a_file_without_audio_is_refused(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=1)
        stream.width = stream.height = 16
        container.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
        container.mux(stream.encode(None))
    with pytest.raises(NoAudio, match="no audio stream"):
        read_audio(tmp_path / "a.mp4")


def test_a_damaged_file_is_refused_by_ffmpegs_reason(tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_text("this is no audio")
    with pytest.raises(BadMedia, match="FFmpeg refuses it: "):
        read_audio(tmp_path / "a.mp3")


def test_more_than_two_channels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 6, expected 1 or 2"):
        write_audio(tmp_path / "a.flac", torch.zeros(6, 100), 44100, FLAC, "", {})
