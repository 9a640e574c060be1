"""Nodes that load and save audio.

`B` batch, `C` channels, `S` samples: AUDIO is `{"waveform": float32 [B, C, S] of -1..1, "sample_rate": int}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from darkroom.engine.media.audio_files import (
    BEST_VARIABLE_RATE,
    FLAC,
    MP3,
    OPUS,
    AudioFormat,
    layout_of,
    read_audio,
    write_audio,
)
from darkroom.engine.media.faults import check_audio
from darkroom.engine.media.opened import BadMedia
from darkroom.engine.media.video import Audio
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_content import content_hash
from darkroom.engine.nodes.library.file_metadata import metadata_of
from darkroom.engine.nodes.library.media.video import as_texts
from darkroom.engine.nodes.markers import Hidden, Out, Socket
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import AUDIO
from darkroom.engine.nodes.widgets import Combo, FilePrefix, InputCombo, InputFile, RecordedFile

MODULE = "comfy_extras.nodes_audio"
FORMATS: Mapping[str, AudioFormat] = {"flac": FLAC, "mp3": MP3, "opus": OPUS}
FIELDS_OF_FORMATS = (
    ("flac", ()),
    ("mp3", (Field("quality", Combo((BEST_VARIABLE_RATE, *MP3.bit_rates)), BEST_VARIABLE_RATE),)),
    ("opus", (Field("quality", Combo(tuple(OPUS.bit_rates)), "128k"),)),
)

Prompt = Annotated[Any, Hidden("PROMPT")]
ExtraPngInfo = Annotated[Any, Hidden("EXTRA_PNGINFO")]
FilenamePrefix = Annotated[str, FilePrefix(multiline=False)]


class AudioFile(InputCombo):
    """Audio file in the input folder, or a video with an audio stream."""

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        files = sorted([*environment.input_files("audio"), *environment.input_files("video")])
        return {"multiselect": False, "options": files, **self.extra}


def _unreadable(environment: NodeEnvironment, audio: object) -> str | None:
    """Return the reason why audio cannot be read, so that a prompt is refused before anything runs."""
    if audio is None:
        return None
    missing = InputFile("audio").complaint(environment, audio)
    if missing is not None:
        return missing
    try:
        check_audio(environment.input_path(str(audio)), environment.free_bytes())
    except BadMedia as error:
        return f"Invalid audio file: {audio} ({error})"
    return None


def _content(environment: NodeEnvironment, audio: object) -> str | None:
    return content_hash(environment, audio)


def _read(context: NodeContext, name: str) -> Audio:
    path = context.files.input_path(name)
    waveform, rate_hz = read_audio(path, context.files.free_bytes(), context.cancel.check)
    return {"waveform": waveform[None], "sample_rate": rate_hz}  # [1, C, S]


@node("LoadAudio", display_name="Load Audio", category="audio", python_module=MODULE,
      check=_unreadable, fingerprint=_content, essentials_category="Audio")  # fmt: skip
def load_audio(
    context: NodeContext, *, audio: Annotated[str, AudioFile("audio", extra={"audio_upload": True})]
) -> AUDIO:
    return _read(context, audio)


@node("RecordAudio", display_name="Record Audio", category="audio", python_module=MODULE,
      check=_unreadable, fingerprint=_content)  # fmt: skip
def record_audio(context: NodeContext, *, audio: Annotated[str, RecordedFile("audio", "AUDIO_RECORD")]) -> AUDIO:
    """Load audio that ComfyUI's page has recorded."""
    return _read(context, audio)


PassedAudio = Annotated[NodeOutput, Socket("AUDIO"), Out("audio")]


@node(
    "SaveAudio",
    display_name="Save Audio (FLAC) (DEPRECATED)",
    category="audio",
    python_module=MODULE,
    is_output=True,
    deprecated=True,
    essentials_category="Audio",
)
def save_audio(
    context: NodeContext,
    *,
    audio: AUDIO,
    filename_prefix: FilenamePrefix = "audio/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> PassedAudio:
    return save_all(context, audio, filename_prefix, FLAC, "", prompt, extra_pnginfo).passing_on(audio)


@node(
    "SaveAudioMP3",
    display_name="Save Audio (MP3) (DEPRECATED)",
    category="audio",
    python_module=MODULE,
    is_output=True,
    deprecated=True,
    essentials_category="Audio",
)
def save_audio_mp3(
    context: NodeContext,
    *,
    audio: AUDIO,
    filename_prefix: FilenamePrefix = "audio/ComfyUI",
    quality: Annotated[str, Combo((BEST_VARIABLE_RATE, *MP3.bit_rates))] = BEST_VARIABLE_RATE,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> PassedAudio:
    return save_all(context, audio, filename_prefix, MP3, quality, prompt, extra_pnginfo).passing_on(audio)


@node(
    "SaveAudioOpus",
    display_name="Save Audio (Opus) (DEPRECATED)",
    category="audio",
    python_module=MODULE,
    is_output=True,
    deprecated=True,
)
def save_audio_opus(
    context: NodeContext,
    *,
    audio: AUDIO,
    filename_prefix: FilenamePrefix = "audio/ComfyUI",
    quality: Annotated[str, Combo(tuple(OPUS.bit_rates))] = "128k",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> PassedAudio:
    return save_all(context, audio, filename_prefix, OPUS, quality, prompt, extra_pnginfo).passing_on(audio)


@node("SaveAudioAdvanced", display_name="Save Audio (Advanced)", category="audio", python_module=MODULE,
      is_output=True,
      search_aliases=["save audio", "export audio", "output audio", "write audio", "flac", "mp3", "opus"])  # fmt: skip
def save_audio_advanced(
    context: NodeContext,
    *,
    audio: AUDIO,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "audio/ComfyUI",
    format: Annotated[Mapping[str, str], DynamicChoice(fields=FIELDS_OF_FORMATS)],
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> PassedAudio:
    """Save audio as FLAC, MP3 or Opus, with the prompt in its tags."""
    kind, quality = FORMATS[format["format"]], format.get("quality", "")
    return save_all(context, audio, filename_prefix, kind, quality, prompt, extra_pnginfo).passing_on(audio)


@node("PreviewAudio", display_name="Preview Audio", category="audio", python_module=MODULE, is_output=True)
def preview_audio(
    context: NodeContext, *, audio: AUDIO, prompt: Prompt = None, extra_pnginfo: ExtraPngInfo = None
) -> PassedAudio:
    """Show audio: save it to the temporary folder."""
    return save_all(context, audio, "ComfyUI", FLAC, "", prompt, extra_pnginfo, "temp").passing_on(audio)


def save_all(
    context: NodeContext,
    audio: Audio,
    prefix: str,
    kind: AudioFormat,
    quality: str,
    prompt: Any,
    extra_pnginfo: Any,
    folder: Literal["output", "temp"] = "output",
) -> NodeOutput:
    """Save each audio of a batch to its own file, with the prompt in its tags. Raises ValueError for 3 channels."""
    tags = as_texts(metadata_of(context, prompt, extra_pnginfo))
    layout_of(audio["waveform"])
    shown = []
    for index, waveform in enumerate(audio["waveform"].detach().cpu()):  # [C, S]
        output = context.files.save_path(prefix, kind=folder, suffix=kind.suffix, batch_index=index)
        rate_hz = int(audio["sample_rate"])
        context.files.submit(partial(write_audio, output.path, waveform, rate_hz, kind, quality, tags))
        shown.append(output.shown())
    return NodeOutput({"audio": shown})


NODES = (load_audio, record_audio, save_audio, save_audio_mp3, save_audio_opus, save_audio_advanced, preview_audio)
