"""Videos that move after audio: Wan 2.2 S2V, and HuMo, whose figures speak.

`L` layers and `A` width of the encoder of audio, `T` its features, 50 a second, `F` frames, `f` latent frames.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch.nn import functional

from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import (
    CELL_PX,
    FRAMES_RATIO,
    MODULE,
    GivenImage,
    Length,
    Side,
    fitted,
    grey_video,
    latent_of,
    nothing_like,
    num_latent_frames,
)
from darkroom.engine.models.kinds.audio_encoder_value import AudioEncoderOutput
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import AUDIO_ENCODER_OUTPUT, CONDITIONING, LATENT, VAE, Conditioning, Latent

FEATURES_HZ = 50
STEPS_HZ, VIDEO_HZ = 30, 16  # S2V: steps of audio and frames a second
MOST_EARLIER_FRAMES, MOST_EARLIER_LATENTS = 73, 19
SPEECH_HZ = 25  # HuMo: steps of speech, and frames, a second
SPEECH_GROUPS = (slice(0, 8), slice(8, 16), slice(16, 24), slice(24, 32), slice(32, 33))  # layers that are averaged
SPEECH_LAYERS, SPEECH_WIDTH = 33, 1280  # of Whisper large v3
SAMPLES_PER_STEP = 640  # of audio at 16 kHz
SPEECH_WINDOW, SPEECH_OVERLAP = 8, 2  # steps of speech of a latent frame, of them those shared with either neighbour

Heard = Annotated[AUDIO_ENCODER_OUTPUT | None, Optional()]


def at_rate(features: torch.Tensor, rate_hz: int) -> torch.Tensor:
    """Return features [B, T, A] of 50 a second as those of another rate, ends on ends."""
    length = int(features.shape[1] / FEATURES_HZ * rate_hz)
    if length < 1:
        raise ValueError(f"audio_encoder_output: too short; got {features.shape[1]} features, expected at least 2")
    resized = functional.interpolate(features.transpose(1, 2), size=length, align_corners=True, mode="linear")
    return resized.transpose(1, 2)


def audio_steps(heard: AudioEncoderOutput, num_frames: int) -> torch.Tensor:
    """Return the step of audio of each frame [1, L, A, n], zeros behind the audio, for videos of `num_frames` each.

    `n` is the audio's frames, rounded up to whole videos. Raises ValueError for a batch of audio.
    """
    layers = heard["encoded_audio_all_layers"]
    if layers[0].shape[0] != 1:
        raise ValueError(f"audio_encoder_output: a batch of audio; got {layers[0].shape[0]}, expected one")
    steps = at_rate(torch.cat(layers), STEPS_HZ)  # [L, T, A]
    num_steps = steps.shape[1]
    num_videos = int(num_steps / (num_frames * (STEPS_HZ / VIDEO_HZ))) + 1
    places = torch.arange(num_videos * num_frames, dtype=torch.float64) * STEPS_HZ / VIDEO_HZ
    chosen = places.round().long()
    heard_now = chosen < num_steps
    frames = steps[:, chosen.clamp(max=num_steps - 1)] * heard_now[:, None]
    return frames.transpose(1, 2)[None]


def _follow_audio(
    guide: VideoGuide,
    heard: AudioEncoderOutput | None,
    ref_image: torch.Tensor | None,
    control_video: torch.Tensor | None,
    earlier: torch.Tensor | None,
    first_frame: int = 0,
) -> tuple[Conditioning, Conditioning, Latent]:
    """Condition a video on the audio from `first_frame` on, and return the outputs of its node.

    `earlier` is the latent of the frames before it.
    """
    num_frames = guide.latent.shape[2] * FRAMES_RATIO
    if heard is not None:
        steps = audio_steps(heard, num_frames)[..., first_frame : first_frame + num_frames]
        if steps.shape[-1] > 0:
            guide.positive = with_options(guide.positive, audio_embed=steps)
            guide.negative = with_options(guide.negative, audio_embed=steps * 0.0)
    if ref_image is not None:
        guide.append("reference_latents", guide.encode(ref_image[:1]))
    if earlier is not None:
        guide.set(reference_motion=earlier[:, :, -MOST_EARLIER_LATENTS:])
    control = nothing_like(guide.latent) if control_video is None else guide.begun_with(control_video[: guide.length])
    guide.set(control_video=control)
    return guide.outputs


@node("WanSoundImageToVideo", display_name=None, category="model/conditioning/wan/sound", python_module=MODULE)
def wan_audio_image_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 77,
    batch_size: Count = 1,
    audio_encoder_output: Heard = None,
    ref_image: GivenImage = None,
    control_video: GivenImage = None,
    ref_motion: GivenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Let a figure move after audio, behind the frames of `ref_motion`."""
    earlier = None
    if ref_motion is not None:
        frames = fitted(ref_motion[-MOST_EARLIER_FRAMES:], width, height)
        video = grey_video(MOST_EARLIER_FRAMES, width, height, frames.shape[-1])
        video[-frames.shape[0] :] = frames
        earlier = vae.encode(video[..., :3])
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    return _follow_audio(guide, audio_encoder_output, ref_image, control_video, earlier)


@node("WanSoundImageToVideoExtend", display_name=None, category="model/conditioning/wan/sound", python_module=MODULE)
def wan_audio_image_to_video_extend(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    length: Length = 77,
    video_latent: LATENT,
    audio_encoder_output: Heard = None,
    ref_image: GivenImage = None,
    control_video: GivenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Go on with a video behind `video_latent`, and with its audio where that ends."""
    earlier = video_latent["samples"]
    batch, _, earlier_latents, rows, columns = earlier.shape
    first_frame = earlier_latents * FRAMES_RATIO
    guide = VideoGuide(positive, negative, vae, columns * CELL_PX, rows * CELL_PX, length, batch)
    return _follow_audio(guide, audio_encoder_output, ref_image, control_video, earlier, first_frame)


def speech_windows(heard: AudioEncoderOutput, length: int) -> torch.Tensor:
    """Return the steps of speech [1, f, 8, 5, A] of each latent frame of `length` frames, zeros where there are none.

    Raises ValueError for an encoder of fewer layers than Whisper large v3.
    """
    layers = heard["encoded_audio_all_layers"]
    if len(layers) < SPEECH_LAYERS:
        raise ValueError(
            f"audio_encoder_output: of another audio encoder; got {len(layers) - 1} layers, expected those of Whisper "
            f"large v3, {SPEECH_LAYERS - 1}"
        )
    num_features = heard["audio_samples"] // SAMPLES_PER_STEP * (FEATURES_HZ // SPEECH_HZ)
    features = torch.stack(layers, dim=2)[:, :num_features]  # [B, T, L, A]
    groups = [at_rate(features[:, :, group].mean(dim=2), SPEECH_HZ) for group in SPEECH_GROUPS]
    steps = torch.stack(groups, dim=2)[0]  # [T, 5, A]
    firsts = torch.arange(num_latent_frames(length)) * FRAMES_RATIO - (FRAMES_RATIO - 1) - SPEECH_OVERLAP
    places = firsts[:, None] + torch.arange(SPEECH_WINDOW)
    is_there = (places >= 0) & (places < steps.shape[0])
    return (steps[places.clamp(0, steps.shape[0] - 1)] * is_there[..., None, None])[None]


@node(
    "WanHuMoImageToVideo",
    display_name=None,
    category="model/conditioning/wan/humo",
    python_module=MODULE,
    experimental=True,
)
def wan_humo_image_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 97,
    batch_size: Count = 1,
    audio_encoder_output: Heard = None,
    ref_image: GivenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Let a figure speak."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    reference = torch.zeros_like(guide.latent[:, :, :1]) if ref_image is None else guide.encode(ref_image[:1])
    positive = with_appended(positive, "reference_latents", reference)
    negative = with_appended(negative, "reference_latents", torch.zeros_like(reference))
    if audio_encoder_output is None:
        speech = torch.zeros(batch_size, guide.latent.shape[2] + 1, SPEECH_WINDOW, len(SPEECH_GROUPS), SPEECH_WIDTH)
    else:
        speech = speech_windows(audio_encoder_output, length)
    positive = with_options(positive, audio_embed=speech)
    negative = with_options(negative, audio_embed=torch.zeros_like(speech))
    return positive, negative, latent_of(guide.latent)


NODES = (wan_audio_image_to_video, wan_audio_image_to_video_extend, wan_humo_image_to_video)
