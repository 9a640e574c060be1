"""Images, short videos and audio that are anchored at any frame of a video."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch

from darkroom.engine.diffusion.nested_latent import streams_of
from darkroom.engine.families.minimax_h3.conditions import KEYFRAMES
from darkroom.engine.families.minimax_h3.latents import VIDEO_CHANNELS
from darkroom.engine.families.minimax_h3.layout import FRAME_SPAN
from darkroom.engine.families.minimax_h3.nodes.inputs import (
    CATEGORY,
    MODULE,
    Positive,
    encoded,
    encoded_audio,
    resized,
)
from darkroom.engine.families.minimax_h3.sizes import CELL_PX, LEAST_FRAMES, frames_below, frames_of
from darkroom.engine.media.video import Audio
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import AUDIO, CONDITIONING, IMAGE, LATENT, VAE, Latent
from darkroom.engine.nodes.widgets import Int


@node("MiniMaxH3AddGuide", display_name="Add Guide for MiniMax H3", category=CATEGORY, python_module=MODULE)
def minimax_h3_add_guide(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    vae: Annotated[VAE | None, Optional()] = None,
    audio_vae: Annotated[VAE | None, Optional()] = None,
    latent: LATENT,
    image: Annotated[IMAGE | None, Optional()] = None,
    audio: Annotated[AUDIO | None, Optional()] = None,
    frame_idx: Annotated[int, Int(min=-9999, max=9999)] = 0,
) -> Positive:
    """Anchor an image, a short video or audio at a frame of a video; negative frames count from its end.

    Of fewer than five images the first one is used, of more of them as many as a video may have. Audio is cut to the
    video's length.
    """
    video, own_audio = _streams(latent)
    if image is None and audio is None:
        raise ValueError("image: nothing to anchor; got neither image nor audio, expected one of them")
    frames, num_given = frames_of(video.shape[2]), 1
    if image is not None and image.shape[0] >= LEAST_FRAMES:
        num_given = frames_below(image.shape[0])
    frame = frame_idx if frame_idx >= 0 else frames + frame_idx
    if frame < 0 or frame + num_given > frames:
        raise ValueError(
            f"frame_idx: the guide is not within the video; got frame {frame_idx} for {num_given} frames, expected "
            f"{-frames} to {frames - num_given} in a video of {frames} frames"
        )
    guide: dict[str, Any] = {"resolved_frame_index": frame}
    if image is not None:
        guide["latent"] = _encoded_frames(vae, image[:num_given], video)
    if audio is not None:
        guide["audio_latent"] = _encoded_audio(audio_vae, audio, own_audio.shape[-1], frame)
    earlier = positive[0][1].get(KEYFRAMES, []) if positive else []
    return with_options(positive, **{KEYFRAMES: [*earlier, guide]})


def _streams(latent: Latent) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the video and the audio of a latent. Raises ValueError for another one."""
    streams = streams_of(latent["samples"])
    if len(streams) != 2 or streams[0].ndim != 5 or streams[0].shape[1] != VIDEO_CHANNELS:
        raise ValueError(
            f"latent: none of MiniMax H3; got {[list(item.shape) for item in streams] or 'one stream'}, expected a "
            f"video of {VIDEO_CHANNELS} channels with its audio (EmptyMiniMaxH3LatentAV)"
        )
    return streams[0], streams[1]


def _encoded_frames(vae: VAE | None, frames: torch.Tensor, video: torch.Tensor) -> torch.Tensor:
    """Return frames, cut to a video's proportions, as a latent. Raises ValueError without a VAE."""
    if vae is None:
        raise ValueError("vae: an image needs a VAE; got none, expected MiniMax H3's VAE of videos")
    height, width = (side * CELL_PX for side in video.shape[-2:])
    return encoded(vae, resized(frames, width, height, crops=True))


def _encoded_audio(vae: VAE | None, audio: Audio, length: int, frame: int) -> torch.Tensor:
    """Return audio from a frame of a video with `length` latent frames of audio on. Raises ValueError without a VAE."""
    if vae is None:
        raise ValueError("audio_vae: audio needs a VAE; got none, expected MiniMax H3's VAE of audio")
    most = math.floor(length - FRAME_SPAN * frame)
    if most < 1:
        raise ValueError(
            f"frame_idx: behind the end of the video's audio; got frame {frame}, expected one before "
            f"{math.ceil(length / FRAME_SPAN)}"
        )
    return encoded_audio(vae, audio)[..., :most].clone()


NODES = (minimax_h3_add_guide,)
