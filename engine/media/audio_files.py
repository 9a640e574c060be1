"""Audio files to waveforms and back, through PyAV.

`C` channels, `S` samples: a waveform is `[C, S]`, float32, -1..1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.media.limits import BYTES_PER_SAMPLE, audio_too_long, check_declared_audio
from darkroom.engine.media.opened import Source, opened_for_reading, opened_for_writing
from darkroom.engine.media.resample import resample

OPUS_RATES_HZ = (8000, 12000, 16000, 24000, 48000)
FULL_SCALE = {torch.int16: 2.0**15, torch.int32: 2.0**31, torch.int64: 2.0**63}


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A file format that audio is saved in. `bit_rates` maps a node's `quality` to bits per second."""

    container: str
    codec: str
    bit_rates: Mapping[str, int]

    @property
    def suffix(self) -> str:
        return f".{self.container}"


FLAC = AudioFormat("flac", "flac", {})
MP3 = AudioFormat("mp3", "libmp3lame", {"128k": 128_000, "320k": 320_000})
OPUS = AudioFormat("opus", "libopus", {"64k": 64_000, "96k": 96_000, "128k": 128_000, "192k": 192_000, "320k": 320_000})
BEST_VARIABLE_RATE = "V0"  # of LAME


class NoAudio(ValueError):
    """A file without a readable audio stream."""


def read_audio(
    source: Source, max_bytes: int = sys.maxsize, check_cancelled: Callable[[], None] = lambda: None
) -> tuple[torch.Tensor, int]:
    """Read the first audio stream of a file: waveform [C, S] and its sample rate in Hz.

    Raises NoAudio for a file without audio, BadMedia when it is damaged or would take more than `max_bytes`.
    """
    with opened_for_reading(source) as container:
        stream = next(iter(container.streams.audio), None)
        if stream is None:
            raise NoAudio("no audio stream; expected a file with audio")
        check_declared_audio(container, stream, max_bytes)
        waveform = join_frames(container.decode(stream), max_bytes, check_cancelled)
        if waveform is None:
            raise NoAudio("an audio stream without samples; expected a file with audio")
        return waveform, int(stream.codec_context.sample_rate)


def join_frames(
    frames: Iterable[Any], max_bytes: int = sys.maxsize, check_cancelled: Callable[[], None] = lambda: None
) -> torch.Tensor | None:
    """Join decoded frames to a waveform [C, S]; None for no frames.

    Raises BadMedia when they would take more than `max_bytes` of memory.
    """
    pieces: list[torch.Tensor] = []
    num_samples = 0
    for frame in frames:
        check_cancelled()
        samples = torch.from_numpy(frame.to_ndarray())  # [C, S], or [1, S * C] where the channels are interleaved
        num_samples += samples.numel()
        if num_samples * BYTES_PER_SAMPLE > max_bytes:
            raise audio_too_long(f"at least {num_samples} samples", max_bytes)
        num_channels = len(frame.layout.channels)
        pieces.append(as_float(samples if samples.shape[0] == num_channels else samples.view(-1, num_channels).t()))
    return torch.cat(pieces, dim=1) if pieces else None


def as_float(samples: torch.Tensor) -> torch.Tensor:
    """Return samples of any type as float32 of -1..1."""
    if samples.dtype == torch.uint8:
        return (samples.float() - 128.0) / 128.0
    return samples.float() / FULL_SCALE.get(samples.dtype, 1.0)


def write_audio(
    path: Path, waveform: torch.Tensor, rate_hz: int, kind: AudioFormat, quality: str, texts: Mapping[str, str]
) -> None:
    """Write a waveform [C, S] with one or two channels, and `texts` as tags.

    Opus is resampled to the next rate that it has. Raises ValueError for other numbers of channels.
    """
    layout = layout_of(waveform)
    if kind is OPUS:
        opus_rate_hz = next((rate for rate in OPUS_RATES_HZ if rate >= rate_hz), OPUS_RATES_HZ[-1])
        waveform, rate_hz = resample(waveform, rate_hz, opus_rate_hz), opus_rate_hz
    with opened_for_writing(path, format=kind.container) as container:
        container.metadata.update(texts)
        stream = container.add_stream(kind.codec, rate=rate_hz, layout=layout)
        if quality in kind.bit_rates:
            stream.bit_rate = kind.bit_rates[quality]
        elif quality == BEST_VARIABLE_RATE:
            stream.codec_context.qscale = True  # by quality; the highest is FFmpeg's default of zero
        container.mux(stream.encode(audio_frame(waveform, rate_hz, layout)))
        container.mux(stream.encode(None))


def layout_of(waveform: torch.Tensor) -> str:
    """Return FFmpeg's name of the channels of a waveform [..., C, S]. Raises ValueError for more than two."""
    num_channels = waveform.shape[-2]
    if num_channels not in (1, 2):
        raise ValueError(f"audio: too many channels; got {num_channels}, expected 1 or 2")
    return "mono" if num_channels == 1 else "stereo"


def audio_frame(waveform: torch.Tensor, rate_hz: int, layout: str) -> Any:
    """Return a waveform [C, S] as one frame of PyAV, its channels interleaved."""
    import av

    interleaved = waveform.detach().cpu().float().t().reshape(1, -1)  # [1, S * C]
    frame = av.AudioFrame.from_ndarray(interleaved.numpy(), format="flt", layout=layout)
    frame.sample_rate = rate_hz
    frame.pts = 0
    return frame
