"""Nodes that cut, join and mix audio.

`B` batch, `C` channels, `S` samples: AUDIO is `{"waveform": float32 [B, C, S] of -1..1, "sample_rate": int}`.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.media.equalizer import high_shelf, low_shelf, peak
from darkroom.engine.media.resample import resample
from darkroom.engine.media.video import Audio
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import AUDIO
from darkroom.engine.nodes.widgets import Combo, Float, Int

MODULE = "comfy_extras.nodes_audio"
MAX_SECONDS = 0xFFFFFFFFFFFFFFFF  # ComfyUI's; the length of the audio is the limit
MAX_RATE_HZ = 192_000


@node(
    "EmptyAudio",
    display_name="Empty Audio",
    category="audio",
    python_module=MODULE,
    advanced=("sample_rate", "channels"),
)
def empty_audio(
    context: NodeContext,
    *,
    duration: Annotated[float, Float(min=0.0, max=MAX_SECONDS, step=0.01)] = 60.0,
    sample_rate: Annotated[int, Int(min=1, max=MAX_RATE_HZ)] = 44100,
    channels: Annotated[int, Int(min=1, max=2)] = 2,
) -> AUDIO:
    """Make silence."""
    num_samples = round(duration * sample_rate)
    if not 0 <= num_samples * channels * 4 <= context.files.free_bytes():
        found = f"{duration:g} s at {sample_rate} Hz"
        raise ValueError(f"duration and sample_rate: out of range; got {found}, expected audio that fits into memory")
    return {"waveform": torch.zeros(1, channels, num_samples), "sample_rate": sample_rate}


@node("TrimAudioDuration", display_name="Trim Audio Duration", category="audio", python_module=MODULE)
def trim_audio_duration(
    context: NodeContext,
    *,
    audio: AUDIO,
    start_index: Annotated[float, Float(min=-MAX_SECONDS, max=MAX_SECONDS, step=0.01)] = 0.0,
    duration: Annotated[float, Float(min=0.0, step=0.01)] = 60.0,
) -> AUDIO:
    """Cut audio to `duration` seconds from `start_index` on; a negative start counts from the end."""
    waveform, rate_hz = audio["waveform"], audio["sample_rate"]
    num_samples = waveform.shape[-1]
    start = round(start_index * rate_hz) + (num_samples if start_index < 0 else 0)
    start = max(0, min(start, num_samples - 1))
    end = min(start + round(duration * rate_hz), num_samples)
    if start >= end:
        found = f"start_index {start_index:g} s, duration {duration:g} s"
        raise ValueError(f"audio: nothing is left; got {found}, expected a part of {num_samples / rate_hz:g} s")
    return {"waveform": waveform[..., start:end], "sample_rate": rate_hz}


@node("SplitAudioChannels", display_name="Split Audio Channels", category="audio", python_module=MODULE)
def split_audio_channels(
    context: NodeContext, *, audio: AUDIO
) -> tuple[Annotated[AUDIO, Out("left")], Annotated[AUDIO, Out("right")]]:
    """Split stereo audio into its left and its right channel."""
    waveform, rate_hz = audio["waveform"], audio["sample_rate"]
    if waveform.shape[1] != 2:
        raise ValueError(f"audio: not stereo; got {waveform.shape[1]} channels, expected 2")
    return (
        {"waveform": waveform[:, :1], "sample_rate": rate_hz},
        {"waveform": waveform[:, 1:], "sample_rate": rate_hz},
    )


@node("JoinAudioChannels", display_name="Join Audio Channels", category="audio", python_module=MODULE)
def join_audio_channels(
    context: NodeContext, *, audio_left: AUDIO, audio_right: AUDIO
) -> Annotated[AUDIO, Out("audio")]:
    """Join two mono audios, cut to the length of the shorter one, to the channels of stereo audio."""
    for name, audio in (("audio_left", audio_left), ("audio_right", audio_right)):
        if audio["waveform"].shape[1] != 1:
            raise ValueError(f"{name}: not mono; got {audio['waveform'].shape[1]} channels, expected 1")
    left, right, rate_hz = _at_one_rate(audio_left, audio_right)
    num_samples = min(left.shape[-1], right.shape[-1])
    joined = torch.cat((left[..., :num_samples], right[..., :num_samples]), dim=1)
    return {"waveform": joined, "sample_rate": rate_hz}


@node(
    "AudioConcat",
    display_name="Concatenate Audio",
    category="audio",
    python_module=MODULE,
    facts=NodeFacts(joins="seconds"),
)
def audio_concat(
    context: NodeContext,
    *,
    audio1: AUDIO,
    audio2: AUDIO,
    direction: Annotated[str, Combo(("after", "before"))] = "after",
) -> AUDIO:
    """Append `audio2` after or before `audio1`, both as stereo at the higher of their sample rates."""
    first, second, rate_hz = _at_one_rate(audio1, audio2)
    pair = [item.repeat(1, 2, 1) if item.shape[1] == 1 else item for item in (first, second)]
    joined = torch.cat(pair if direction == "after" else pair[::-1], dim=2)
    return {"waveform": joined, "sample_rate": rate_hz}


@node("AudioMerge", display_name="Merge Audio", category="audio", python_module=MODULE)
def audio_merge(
    context: NodeContext,
    *,
    audio1: AUDIO,
    audio2: AUDIO,
    merge_method: Annotated[str, Combo(("add", "mean", "subtract", "multiply"))],
) -> AUDIO:
    """Mix `audio2`, cut or padded to the length of `audio1`, into it. What would clip is made quieter."""
    first, second, rate_hz = _at_one_rate(audio1, audio2)
    missing = first.shape[-1] - second.shape[-1]
    second = torch.nn.functional.pad(second, (0, missing)) if missing > 0 else second[..., : first.shape[-1]]
    match merge_method:
        case "add":
            mixed = first + second
        case "subtract":
            mixed = first - second
        case "multiply":
            mixed = first * second
        case _:
            mixed = (first + second) / 2
    peak = mixed.abs().max() if mixed.numel() else torch.zeros(())
    return {"waveform": mixed / peak if peak > 1.0 else mixed, "sample_rate": rate_hz}


@node("AudioAdjustVolume", display_name="Adjust Audio Volume", category="audio", python_module=MODULE)
def audio_adjust_volume(
    context: NodeContext, *, audio: AUDIO, volume: Annotated[int, Int(min=-100, max=100)] = 1
) -> AUDIO:
    """Change the volume by `volume` decibels."""
    if volume == 0:
        return audio
    return {"waveform": audio["waveform"] * 10 ** (volume / 20), "sample_rate": audio["sample_rate"]}


Gain = Annotated[float, Float(min=-24.0, max=24.0, step=0.1)]


@node("AudioEqualizer3Band", display_name="Audio Equalizer (3-Band)", category="audio", python_module=MODULE,
      experimental=True, search_aliases=["eq", "bass boost", "treble boost", "equalizer"])  # fmt: skip
def audio_equalizer_3_band(
    context: NodeContext,
    *,
    audio: AUDIO,
    low_gain_dB: Gain = 0.0,  # noqa: N803 - ComfyUI's spelling
    low_freq: Annotated[int, Int(min=20, max=500)] = 100,
    mid_gain_dB: Gain = 0.0,  # noqa: N803
    mid_freq: Annotated[int, Int(min=200, max=4000)] = 1000,
    mid_q: Annotated[float, Float(min=0.1, max=10.0, step=0.1)] = 0.707,
    high_gain_dB: Gain = 0.0,  # noqa: N803
    high_freq: Annotated[int, Int(min=1000, max=15000)] = 5000,
) -> AUDIO:
    """Raise or lower low, middle and high frequencies by decibels, each band clipped to -1..1 as torchaudio does."""
    waveform, rate_hz = audio["waveform"], audio["sample_rate"]
    if low_gain_dB != 0:
        waveform = low_shelf(waveform, rate_hz, low_freq, low_gain_dB)
    if mid_gain_dB != 0:
        waveform = peak(waveform, rate_hz, mid_freq, mid_gain_dB, mid_q)
    if high_gain_dB != 0:
        waveform = high_shelf(waveform, rate_hz, high_freq, high_gain_dB)
    return {"waveform": waveform, "sample_rate": rate_hz}


def _at_one_rate(first: Audio, second: Audio) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return both waveforms at the higher sample rate."""
    rate_hz = max(first["sample_rate"], second["sample_rate"])
    waveforms = [resample(item["waveform"], item["sample_rate"], rate_hz) for item in (first, second)]
    return waveforms[0], waveforms[1], rate_hz


NODES = (
    empty_audio,
    trim_audio_duration,
    split_audio_channels,
    join_audio_channels,
    audio_concat,
    audio_merge,
    audio_adjust_volume,
    audio_equalizer_3_band,
)
