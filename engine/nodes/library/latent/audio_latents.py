"""Nodes that encode audio to latents and decode them.

`B` batch, `C` channels, `S` samples: AUDIO is `{"waveform": float32 [B, C, S] of -1..1, "sample_rate": int}`.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.diffusion.nested_latent import last_stream
from darkroom.engine.media.resample import resample
from darkroom.engine.media.video import Audio
from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import AUDIO, LATENT, VAE, Latent
from darkroom.engine.nodes.widgets import Int

MODULE = "comfy_extras.nodes_audio"
LOUDEST_DEVIATION = 0.2  # audio whose samples deviate by more is made quieter


@node("VAEEncodeAudio", display_name="VAE Encode Audio", category="model/latent", python_module=MODULE)
def vae_encode_audio(context: NodeContext, *, audio: AUDIO, vae: VAE) -> LATENT:
    """Encode audio, brought to the VAE's sample rate, to a latent."""
    own = audio_vae_of(vae)
    waveform = resample(audio["waveform"], int(audio["sample_rate"]), own.input_rate_hz)
    return {"samples": own.encode(waveform.movedim(1, -1))}


@node("VAEDecodeAudio", display_name="VAE Decode Audio", category="model/latent", python_module=MODULE)
def vae_decode_audio(context: NodeContext, *, samples: LATENT, vae: VAE) -> AUDIO:
    """Decode a latent to audio, and make quieter what is too loud."""
    own = audio_vae_of(vae)
    return _audio_of(own, samples, own.decode(last_stream(samples["samples"])))


@node("VAEDecodeAudioTiled", display_name="VAE Decode Audio (Tiled)", category="model/latent", python_module=MODULE,
      search_aliases=["latent to audio"])  # fmt: skip
def vae_decode_audio_tiled(
    context: NodeContext,
    *,
    samples: LATENT,
    vae: VAE,
    tile_size: Annotated[int, Int(min=32, max=8192, step=8)] = 512,
    overlap: Annotated[int, Int(min=0, max=1024, step=8)] = 64,
) -> AUDIO:
    """Decode a latent to audio in stretches of `tile_size` cells, which share `overlap` cells, at most half of one."""
    own = audio_vae_of(vae)
    return _audio_of(own, samples, own.decode_tiled(last_stream(samples["samples"]), tile_x=tile_size, overlap=overlap))


def _audio_of(vae: AudioVae, latent: Latent, decoded: torch.Tensor) -> Audio:
    """Return decoded audio [B, S, C] as AUDIO, at the rate that the latent names, else at the VAE's."""
    waveform = decoded.movedim(-1, 1)  # [B, C, S]
    deviation = torch.std(waveform, dim=[1, 2], keepdim=True) / LOUDEST_DEVIATION
    rate_hz = int(latent.get("sample_rate", vae.sample_rate_hz))
    return {"waveform": waveform / deviation.clamp(min=1.0), "sample_rate": rate_hz}


def audio_vae_of(vae: Vae) -> AudioVae:
    """Return a VAE of audio. Raises ValueError for one of images or videos."""
    if not isinstance(vae, AudioVae):
        raise ValueError("vae: one of images; got a VAE of images or videos, expected one of audio")
    return vae


NODES = (vae_encode_audio, vae_decode_audio, vae_decode_audio_tiled)
