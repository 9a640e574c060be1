"""Images, audio and latents as the nodes of MiniMax H3 take them."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.diffusion.nested_latent import nested
from darkroom.engine.families.minimax_h3.latents import AUDIO_CHANNELS, SIDES, VIDEO_CHANNELS
from darkroom.engine.families.minimax_h3.sizes import CELL_PX, audio_frames, latent_frames
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.media.resample import resample
from darkroom.engine.media.video import Audio
from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING, VAE, Latent
from darkroom.engine.nodes.widgets import Int, PromptText

MODULE = "comfy_extras.nodes_minimax_h3"
CATEGORY = "model/conditioning/minimax"
MAX_LENGTH = 3600

Prompt = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]
Side = Annotated[int, Int(min=32, max=MAX_SIDE_PX, step=32)]
Length = Annotated[int, Int(min=5, max=MAX_LENGTH, step=17)]
Positive = Annotated[CONDITIONING, Out("positive")]


def empty_latent(width: int, height: int, frames: int) -> Latent:
    """Return zeros for a video of a size in pixels and a number of frames that it may have, and for its audio."""
    video = torch.zeros([1, VIDEO_CHANNELS, latent_frames(frames), height // CELL_PX, width // CELL_PX])
    audio = torch.zeros([1, AUDIO_CHANNELS, SIDES, audio_frames(frames)])
    return {"samples": nested([video, audio])}


def encoded(vae: VAE, images: torch.Tensor) -> torch.Tensor:
    """Return the latent [1, 24, t, h, w] of a video's frames. Raises ValueError for a VAE of another family."""
    if isinstance(vae, AudioVae) or vae.latent_channels != VIDEO_CHANNELS:
        raise ValueError(f"vae: one of another family; got {_described(vae)}, expected MiniMax H3's VAE of videos")
    return vae.encode(images)


def encoded_audio(vae: VAE, audio: Audio) -> torch.Tensor:
    """Return the latent [1, 32, 2, T] of the first item of audio. Raises ValueError for a VAE of another family."""
    if not isinstance(vae, AudioVae) or vae.latent_channels != AUDIO_CHANNELS:
        raise ValueError(f"audio_vae: one of another family; got {_described(vae)}, expected MiniMax H3's VAE of audio")
    waveform = resample(audio["waveform"], int(audio["sample_rate"]), vae.sample_rate_hz)
    return vae.encode(waveform[:1].movedim(1, -1))


def _described(vae: VAE) -> str:
    kind = "audio" if isinstance(vae, AudioVae) else "images or videos"
    return f"a VAE of {kind} with {vae.latent_channels} channels"


def resized(images: torch.Tensor, width: int, height: int, *, crops: bool) -> torch.Tensor:
    """Return images [B, height, width, 3], stretched, or cut to their middle where `crops` is set."""
    return resize_image(images[..., :3], width, height, "lanczos", "center" if crops else "disabled")
