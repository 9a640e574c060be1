"""Nodes that load, make, take apart and save videos.

`B` frames, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

from darkroom.engine.media import video_files
from darkroom.engine.media.faults import check_video
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.media.opened import BadMedia
from darkroom.engine.media.video import (
    VideoCodec,
    VideoComponents,
    VideoContainer,
    VideoFromComponents,
    VideoFromFile,
    VideoFromFrames,
    VideoInput,
)
from darkroom.engine.media.video_encoding import AUTO, AV1, H264
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_metadata import metadata_of
from darkroom.engine.nodes.library.media.video_choices import FORMATS, chosen_encoding, codecs
from darkroom.engine.nodes.markers import Hidden, Optional, Out, Socket, Streams
from darkroom.engine.nodes.parameters import DynamicChoice
from darkroom.engine.nodes.sockets import AUDIO, COMBO, FLOAT, FRAMES, IMAGE, INT, VIDEO
from darkroom.engine.nodes.widgets import Combo, FilePrefix, Flag, Float, InputCombo, InputFile, WordOrInt

CATEGORY = "video"
MODULE = "comfy_extras.nodes_video"

Prompt = Annotated[Any, Hidden("PROMPT")]
ExtraPngInfo = Annotated[Any, Hidden("EXTRA_PNGINFO")]
FilenamePrefix = Annotated[str, FilePrefix(multiline=False)]


def as_texts(metadata: Mapping[str, object]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in metadata.items()}


def _unreadable(environment: NodeEnvironment, file: object) -> str | None:
    """Return the reason why a video cannot be read, so that a prompt is refused before anything runs."""
    if file is None:
        return None
    missing = InputFile("video").complaint(environment, file)
    if missing is not None:
        return missing
    try:
        check_video(environment.input_path(str(file)))
    except BadMedia as error:
        return f"Invalid video file: {file} ({error})"
    return None


def _state_of_file(environment: NodeEnvironment, file: object) -> list[int] | None:
    """Return time and size of a file instead of a hash of its content: videos are large."""
    if file is None:
        return None
    state = environment.input_path(str(file)).stat()
    return [state.st_mtime_ns, state.st_size]


@node("LoadVideo", display_name="Load Video", category=CATEGORY, python_module=MODULE,
      check=_unreadable, fingerprint=_state_of_file, essentials_category="Basics")  # fmt: skip
def load_video(
    context: NodeContext, *, file: Annotated[str, InputCombo("video", extra={"video_upload": True})]
) -> VIDEO:
    return VideoFromFile(context.files.input_path(file), context.files.free_bytes)


@node(
    "CreateVideo",
    display_name="Create Video",
    category=CATEGORY,
    python_module=MODULE,
    essentials_category="Video Tools",
)
def create_video(
    context: NodeContext,
    *,
    images: FRAMES,
    fps: Annotated[float, Float(min=1.0, max=120.0, step=1.0)] = 30.0,
    audio: Annotated[AUDIO | None, Optional()] = None,
    bit_depth: Annotated[
        int | str, WordOrInt(min=8, max=10, step=2, words=(AUTO,), extra={"display": "number"}), Optional()
    ] = 8,
) -> VIDEO:
    """Create a video from images. `auto` bits of a channel, of later releases, are those of sRGB: 8."""
    bit_depth = 8 if isinstance(bit_depth, str) else bit_depth
    if isinstance(images, FrameStream):
        if context.output_is_streamed():
            return VideoFromFrames(images, Fraction(fps), audio, bit_depth)
        images = images.whole()
    return VideoFromComponents(VideoComponents(images, Fraction(fps), audio), bit_depth)


@node("GetVideoComponents", display_name="Get Video Components", category=CATEGORY, python_module=MODULE)
def get_video_components(
    context: NodeContext, *, video: VIDEO
) -> tuple[
    Annotated[IMAGE, Out("images")],
    Annotated[AUDIO, Out("audio")],
    Annotated[FLOAT, Out("fps")],
    Annotated[INT, Out("bit_depth")],
    Annotated[COMBO, Out("color_space")],
]:
    """Take a video apart: its images, its audio (None without one), frames a second, bits of a channel and colours."""
    parts = video.get_components()
    depth, space = video.get_bit_depth(), video.get_color_space()
    return parts.images, parts.audio, float(parts.frame_rate), depth, space  # type: ignore[return-value]


@node(
    "SaveVideo",
    display_name="Save Video",
    category=CATEGORY,
    python_module=MODULE,
    is_output=True,
    essentials_category="Basics",
)
def save_video(
    context: NodeContext,
    *,
    video: Annotated[VIDEO, Streams()],
    filename_prefix: FilenamePrefix = "video/ComfyUI",
    format: Annotated[Mapping[str, Any], DynamicChoice(fields=FORMATS)],
    codec: Annotated[
        Mapping[str, Any] | None, DynamicChoice(fields=codecs(H264, AV1), extra={"hidden": True}), Optional()
    ] = None,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("VIDEO"), Out("video")]:
    """Save a video with the prompt in its metadata. A file that is so already keeps its streams as they are.

    `codec` is where prompts of before gave it; that within `format` comes first.
    """
    width, height = video.get_dimensions()
    chosen = format.get("codec") or codec or {"codec": AUTO}
    container, options = VideoContainer(format["format"]), chosen_encoding(chosen)
    suffix = f".{VideoContainer.get_extension(container)}"
    output = context.files.save_path(filename_prefix, width, height, suffix=suffix)
    metadata = metadata_of(context, prompt, extra_pnginfo) or None
    target, kind = str(output.path), VideoCodec(chosen["codec"])
    save = partial(_on_cpu(video).save_to, target, container, kind, metadata, **options)
    if isinstance(video, VideoFromFrames):
        context.files.write_now(output, save)
    elif isinstance(video, (VideoFromComponents, VideoFromFile)):
        context.files.submit(save)
    else:
        save()  # a pack's own class may touch the device, which a writer must not
    return NodeOutput({"images": [output.shown()], "animated": (True,)}, (video,))


def _on_cpu(video: VideoInput) -> VideoInput:
    """Return the video with its images off the device, which writers must not touch."""
    if not isinstance(video, VideoFromComponents) or isinstance(video, VideoFromFrames):
        return video
    parts = video.get_components()
    audio = parts.audio and {**parts.audio, "waveform": parts.audio["waveform"].detach().cpu()}
    moved = replace(parts, images=parts.images.detach().cpu(), audio=audio)
    return VideoFromComponents(moved, video.get_bit_depth())


@node("SaveWEBM", display_name="Save WEBM", category=CATEGORY, python_module=MODULE, is_output=True, experimental=True)
def save_webm(
    context: NodeContext,
    *,
    images: FRAMES,
    filename_prefix: FilenamePrefix = "ComfyUI",
    codec: Annotated[str, Combo(tuple(video_files.WEBM_CODECS))],
    fps: Annotated[float, Float(min=0.01, max=1000.0, step=0.01)] = 24.0,
    crf: Annotated[float, Float(min=0, max=63.0, step=1)] = 32.0,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("IMAGE"), Out("images")]:
    output = context.files.save_path(filename_prefix, images.shape[2], images.shape[1], suffix=".webm")
    tags = as_texts(metadata_of(context, prompt, extra_pnginfo))
    write = partial(video_files.write_webm, output.path, codec=codec, frames_per_second=fps, crf=crf, tags=tags)
    if isinstance(images, FrameStream):
        context.files.write_now(output, partial(write, images=images))
    else:
        context.files.submit(partial(write, images=images.detach().cpu()))
    return NodeOutput({"images": [output.shown()], "animated": (True,)}, (images,))


@node("Video Slice", display_name="Trim Video", category="video", python_module=MODULE,
      essentials_category="Video Tools",
      search_aliases=["trim video duration", "skip first frames", "frame load cap", "start time"])  # fmt: skip
def video_slice(
    context: NodeContext,
    *,
    video: VIDEO,
    start_time: Annotated[float, Float(min=-100000.0, max=100000.0, step=0.001)] = 0.0,
    duration: Annotated[float, Float(min=0.0, step=0.001)] = 0.0,
    strict_duration: Annotated[bool, Flag()] = False,
) -> VIDEO:
    """Cut a video to `duration` seconds (0: to the end) from `start_time` on, which counts from the end below 0."""
    part = video.as_trimmed(start_time, duration, strict_duration=strict_duration)
    if part is None:
        found = f"start_time {start_time:g} s, duration {duration:g} s"
        raise ValueError(f"video: has no such part; got {found}, expected a part of {video.get_duration():g} s")
    return part


NODES = (load_video, create_video, get_video_components, save_video, save_webm, video_slice)
