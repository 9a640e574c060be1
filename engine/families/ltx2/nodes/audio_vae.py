"""Nodes of the audio VAE of LTX-2: loading it, audio to latents and back, empty latents of a video's length.

`B` batch, `C` channels, `S` samples: AUDIO is `{"waveform": float32 [B, C, S] of -1..1, "sample_rate": int}`.
Latents of audio are `[B, 8, T, 16]`, 25 cells of time a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.nested_latent import last_stream
from darkroom.engine.media.resample import resample
from darkroom.engine.models.stretched_audio_vae import StretchedAudioVae
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Labelled, Out
from darkroom.engine.nodes.sockets import AUDIO, LATENT, VAE
from darkroom.engine.nodes.widgets import Float, Int, ModelCombo

MODULE = "comfy_extras.nodes_lt_audio"
CATEGORY = "model/latent/ltxv"
NUMBER = {"display": "number"}

AudioVaeInput = Annotated[Vae, Labelled("VAE", "Audio VAE")]


@dataclass(frozen=True)
class Rate(Float):
    """A number of frames a second, from a widget or a link to either kind of number."""

    def type_in(self, environment: NodeEnvironment) -> str:
        return "FLOAT,INT"


@node("LTXVAudioVAELoader", display_name="Load LTXV Audio VAE", category="model/loaders", python_module=MODULE,
      facts=NodeFacts(reads_early=True, items="alike"))  # fmt: skip
def ltxv_audio_vae_loader(
    context: NodeContext, *, ckpt_name: Annotated[str, ModelCombo("checkpoints")]
) -> Annotated[VAE, Out("Audio VAE")]:
    """Load the audio VAE of a checkpoint. Raises `BadModelFile` for a file without one."""
    vae: VAE = context.models.further_vae(ckpt_name)
    return vae


@node("LTXVAudioVAEEncode", display_name="LTXV Audio VAE Encode", category=CATEGORY, python_module=MODULE)
def ltxv_audio_vae_encode(
    context: NodeContext, *, audio: AUDIO, audio_vae: AudioVaeInput
) -> Annotated[LATENT, Out("Audio Latent")]:
    """Encode audio, brought to the VAE's sample rate, to a latent."""
    own = ltx2_audio_vae_of(audio_vae)
    waveform = resample(audio["waveform"], int(audio["sample_rate"]), own.input_rate_hz)
    return {"samples": own.encode(waveform.movedim(1, -1))}


@node("LTXVAudioVAEDecode", display_name="LTXV Audio VAE Decode", category=CATEGORY, python_module=MODULE)
def ltxv_audio_vae_decode(
    context: NodeContext, *, samples: LATENT, audio_vae: AudioVaeInput
) -> Annotated[AUDIO, Out("Audio")]:
    """Decode a latent to audio. Of a latent with a video it is that of the audio."""
    own = ltx2_audio_vae_of(audio_vae)
    waveform = own.decode(last_stream(samples["samples"])).movedim(-1, 1)  # [B, C, S]
    return {"waveform": waveform, "sample_rate": own.sample_rate_hz}


@node("LTXVEmptyLatentAudio", display_name="LTXV Empty Latent Audio", category=CATEGORY, python_module=MODULE)
def ltxv_empty_latent_audio(
    context: NodeContext,
    *,
    frames_number: Annotated[int, Int(min=1, max=1000, step=1, extra=NUMBER)] = 97,
    frame_rate: Annotated[float, Rate(min=1.0, max=1000.0, step=0.01, extra={"widgetType": "FLOAT", **NUMBER})] = 25.0,
    batch_size: Annotated[int, Int(min=1, max=4096, extra=NUMBER)] = 1,
    audio_vae: AudioVaeInput,
) -> Annotated[LATENT, Out("Latent")]:
    """Return an empty latent of the audio of a video."""
    network = ltx2_audio_vae_of(audio_vae).first_stage_model
    cells = network.num_cells(frames_number, float(frame_rate))
    return {
        "samples": torch.zeros(batch_size, network.latent_channels, cells, network.latent_height),
        "type": "audio",
    }


def ltx2_audio_vae_of(vae: Vae) -> StretchedAudioVae:
    """Return an audio VAE of LTX-2. Raises ValueError for another VAE."""
    if not isinstance(vae, StretchedAudioVae):
        raise ValueError("audio_vae: another VAE; got one of images, videos or other audio, expected LTX-2's audio VAE")
    return vae


NODES = (ltxv_audio_vae_loader, ltxv_audio_vae_encode, ltxv_audio_vae_decode, ltxv_empty_latent_audio)
