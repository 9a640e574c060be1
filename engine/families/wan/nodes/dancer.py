"""Videos that dance to music, by WanDancer: its music, its video, and key frames for each part of a longer one.

`F` frames, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, cast

import torch

from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import (
    FRAMES_RATIO,
    GivenImage,
    Length,
    Seen,
    Side,
    fitted,
    num_latent_frames,
)
from darkroom.engine.images.pixels import resize
from darkroom.engine.media.video import Audio
from darkroom.engine.models.kinds.audio_encoder_value import AudioEncoderOutput
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive, Start
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.sockets import AUDIO, AUDIO_ENCODER_OUTPUT, CONDITIONING, IMAGE, MASK, STRING, VAE
from darkroom.engine.nodes.widgets import Float, Int

MODULE = "comfy_extras.nodes_wandancer"
CATEGORY = "model/conditioning/wan/dancer"
MOST_SECONDS = 1200  # of music: features of longer music take too much time
VIDEO_HZ = 30  # and features of music
PAUSE_SECONDS = 0.2  # at the end of music, for which there is no further part
# What prompts say of the frame rate, in Chinese, as in the network's training.
RATE_WORDS, FULL_RATE_WORDS = " 帧率是{:.4f}", ", 帧率是30fps。"
MUSIC, RATE, SCALE = "audio_feature", "fps", "audio_inject_scale"


@node("WanDancerEncodeAudio", display_name=None, category=CATEGORY, python_module=MODULE)
def wan_dancer_encode_audio(
    context: NodeContext,
    *,
    audio: AUDIO,
    video_frames: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)] = 149,
    audio_inject_scale: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
) -> tuple[Annotated[AUDIO_ENCODER_OUTPUT, Out("audio_encoder_output")], Annotated[STRING, Out("fps_string")]]:
    """Return features of music, and what a prompt says of the frame rate of so many frames spread over it.

    Raises ValueError for music that is too long, or too short for the frames.
    """
    waveform, rate_hz = audio["waveform"][0], int(audio["sample_rate"])
    seconds = waveform.shape[-1] / rate_hz
    if seconds > MOST_SECONDS:
        raise ValueError(f"audio: too long; got {seconds:.0f} s, expected at most {MOST_SECONDS}")
    from darkroom.engine.media.music.features import music_features  # only here: scipy takes a while

    features = music_features(waveform, rate_hz)
    steps_per_frame = int(features.shape[1] / video_frames + 0.5)
    if not steps_per_frame:
        raise ValueError(
            f"video_frames: more than there is music for; got {video_frames}, expected at most {2 * features.shape[1]}"
        )
    rate = float(VIDEO_HZ / steps_per_frame)
    heard = cast(AudioEncoderOutput, {MUSIC: features, RATE: rate, SCALE: audio_inject_scale})
    return heard, FULL_RATE_WORDS if int(rate + 0.5) == VIDEO_HZ else RATE_WORDS.format(rate)


def _cells_of(mask: torch.Tensor, cells: tuple[int, int]) -> torch.Tensor:
    """Return the cells [1, 4, f, h, w] that are drawn, of a mask [F, H, W] of pixels that are kept.

    As in ComfyUI, rows and columns are exchanged as the mask is scaled, and its numbers then read row by row.
    """
    if (mask.shape[0] - 1) % FRAMES_RATIO:
        raise ValueError(f"mask: frames come in fours behind the first; got {mask.shape[0]}, expected 4n + 1")
    drawn = resize(1 - mask[None], cells[0], cells[1], "nearest-exact")
    filled = torch.cat([drawn[:, :1].expand(-1, FRAMES_RATIO, -1, -1), drawn[:, 1:]], dim=1)
    return filled.reshape(1, -1, FRAMES_RATIO, *cells).transpose(1, 2)


@node("WanDancerVideo", display_name=None, category=CATEGORY, python_module=MODULE)
def wan_dancer_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 480,
    height: Side = 832,
    length: Length = 149,
    clip_vision_output: Seen = None,
    clip_vision_output_ref: Seen = None,
    start_image: GivenImage = None,
    mask: Annotated[MASK | None, Optional()] = None,
    audio_encoder_output: Annotated[AUDIO_ENCODER_OUTPUT | None, Optional()] = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin with images, or have some anywhere by a mask, and dance to music.

    Raises ValueError for the output of another audio encoder.
    """
    guide = VideoGuide(positive, negative, vae, width, height, length, 1)
    if start_image is not None:
        given = fitted(start_image[:length, :, :, :3], width, height)
        frames = torch.zeros(length, height, width, 3)
        frames[: given.shape[0]] = given
        concat = vae.encode(frames)
        if mask is None:
            drawn = torch.ones(1, 1, guide.latent.shape[2], *concat.shape[-2:])
            drawn[:, :, : num_latent_frames(given.shape[0])] = 0.0
        else:
            drawn = _cells_of(mask[:length], (concat.shape[-2], concat.shape[-1]))
        guide.set(concat_latent_image=concat, concat_mask=drawn)
    if clip_vision_output is not None:
        guide.set(clip_vision_output=clip_vision_output, clip_vision_output_ref=clip_vision_output_ref)
    if audio_encoder_output is not None:
        heard: dict[str, Any] = dict(audio_encoder_output)
        if MUSIC not in heard:
            raise ValueError("audio_encoder_output: no features of music; expected those of WanDancerEncodeAudio")
        guide.set(audio_embed=heard[MUSIC], fps=heard[RATE], audio_inject_scale=heard.get(SCALE, 1.0))
    return guide.outputs


def _check_room(context: NodeContext, images: torch.Tensor, length: int, num_parts: int) -> None:
    """Raise ValueError for parts whose frames and masks do not fit into the memory that is free."""
    _, height, width, channels = images.shape
    frame_bytes = height * width * (channels + 1) * images.element_size()
    check_fits(context, "segment_length", num_parts * length * frame_bytes)


def _num_between(interval: float, end: int) -> int:
    """Return how many key frames so far apart lie before the one at the end of a part."""
    count = 0
    while count * interval < end - interval:
        count += 1
    return count


def key_places(num_images: int, seconds: float, length: int, index: int) -> list[tuple[int, int]]:
    """Return the key frames in a part of `length` frames, and their images: evenly over music of `seconds`."""
    num_parts = int((seconds - PAUSE_SECONDS) / (length / VIDEO_HZ)) + 1 if seconds > PAUSE_SECONDS else 0
    total = num_parts * length
    if total <= 0 or num_images <= 0:
        return []
    interval = total / num_images

    def end_of(part: int) -> int:
        return total - length * part - 1 if part == num_parts - 1 else length - 1

    earlier = sum(_num_between(interval, end_of(part)) for part in range(index))
    end = end_of(index)
    count = _num_between(interval, end)
    places = [(math.ceil(interval * number), earlier + number) for number in range(count)]
    return [(at, image) for at, image in (*places, (end, earlier + count)) if image < num_images and at < length]


def padded_part(
    images: torch.Tensor, audio: Audio, length: int, index: int
) -> tuple[torch.Tensor, torch.Tensor, Audio]:
    """Return the frames [F, H, W, C] of a part, black but for its key frames, their mask [F, H, W], and its audio."""
    count, height, width, channels = images.shape
    waveform, rate_hz = audio["waveform"], audio["sample_rate"]
    seconds = waveform.shape[-1] / rate_hz
    frames, mask = images.new_zeros(length, height, width, channels), images.new_zeros(length, height, width)
    for place, number in key_places(count, seconds, length, index):
        frames[place], mask[place] = images[number], 1
    begin = index * (length / VIDEO_HZ)
    end = min(begin + length / VIDEO_HZ, seconds)
    part = waveform[:, :, int(begin * rate_hz) : int(end * rate_hz)]
    return frames, mask, {"waveform": part, "sample_rate": rate_hz}


@node("WanDancerPadKeyframes", display_name=None, category="image/video", python_module=MODULE)
def wan_dancer_pad_keyframes(
    context: NodeContext,
    *,
    images: IMAGE,
    segment_length: Annotated[int, Int(min=1, max=10000)] = 149,
    segment_index: Annotated[int, Int(min=0, max=100)] = 0,
    audio: AUDIO,
) -> tuple[
    Annotated[IMAGE, Out("keyframes_sequence")],
    Annotated[MASK, Out("keyframes_mask")],
    Annotated[AUDIO, Out("audio_segment")],
]:
    """Spread images over music as key frames, and return those of one part of it."""
    _check_room(context, images, segment_length, 1)
    return padded_part(images, audio, segment_length, segment_index)


@node("WanDancerPadKeyframesList", display_name=None, category="image/video", python_module=MODULE)
def wan_dancer_pad_keyframes_list(
    context: NodeContext,
    *,
    images: IMAGE,
    segment_length: Annotated[int, Int(min=1, max=10000)] = 149,
    num_segments: Annotated[int, Int(min=1, max=100)] = 1,
    audio: AUDIO,
) -> tuple[
    Annotated[list[torch.Tensor], Socket("IMAGE"), Out("keyframes_sequence", is_list=True)],
    Annotated[list[torch.Tensor], Socket("MASK"), Out("keyframes_mask", is_list=True)],
    Annotated[list[Audio], Socket("AUDIO"), Out("audio_segment", is_list=True)],
]:
    """Spread images over music as key frames, and return those of its first parts."""
    _check_room(context, images, segment_length, num_segments)
    parts = [padded_part(images, audio, segment_length, index) for index in range(num_segments)]
    return [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]


NODES = (
    wan_dancer_encode_audio, wan_dancer_video, wan_dancer_pad_keyframes, wan_dancer_pad_keyframes_list,
)  # fmt: skip
