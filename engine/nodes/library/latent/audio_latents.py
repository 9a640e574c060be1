"""Nodes that encode audio to latents and decode them.

`B` batch, `C` channels, `S` samples: AUDIO is `{"waveform": float32 [B, C, S] of -1..1, "sample_rate": int}`.
"""

from __future__ import annotations

import torch

from darkroom.engine.media.resample import resample
from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext, node
from darkroom.engine.nodes.sockets import AUDIO, LATENT, VAE

MODULE = "comfy_extras.nodes_audio"
LOUDEST_DEVIATION = 0.2  # audio whose samples deviate by more is made quieter


@node("VAEEncodeAudio", display_name="VAE Encode Audio", category="model/latent", python_module=MODULE)
def vae_encode_audio(context: NodeContext, *, audio: AUDIO, vae: VAE) -> LATENT:
    """Encode audio, brought to the VAE's sample rate, to a latent."""
    own = _of_audio(vae)
    waveform = resample(audio["waveform"], int(audio["sample_rate"]), own.sample_rate_hz)
    return {"samples": own.encode(waveform.movedim(1, -1))}


@node("VAEDecodeAudio", display_name="VAE Decode Audio", category="model/latent", python_module=MODULE)
def vae_decode_audio(context: NodeContext, *, samples: LATENT, vae: VAE) -> AUDIO:
    """Decode a latent to audio, and make quieter what is too loud."""
    own = _of_audio(vae)
    waveform = own.decode(samples["samples"]).movedim(-1, 1)  # [B, C, S]
    deviation = torch.std(waveform, dim=[1, 2], keepdim=True) / LOUDEST_DEVIATION
    return {"waveform": waveform / deviation.clamp(min=1.0), "sample_rate": own.sample_rate_hz}


def _of_audio(vae: Vae) -> AudioVae:
    if not isinstance(vae, AudioVae):
        raise ValueError("vae: one of images; got a VAE of images or videos, expected one of audio")
    return vae


NODES = (vae_encode_audio, vae_decode_audio)
