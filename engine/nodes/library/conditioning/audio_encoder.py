"""Nodes that encode audio, for networks that move images after them."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import AUDIO, AUDIO_ENCODER, AUDIO_ENCODER_OUTPUT
from darkroom.engine.nodes.widgets import ModelCombo

MODULE = "comfy_extras.nodes_audio_encoder"


@node("AudioEncoderLoader", display_name="Load Audio Encoder", category="model/loaders", python_module=MODULE)
def audio_encoder_loader(
    context: NodeContext, *, audio_encoder_name: Annotated[str, ModelCombo("audio_encoders")]
) -> AUDIO_ENCODER:
    """Load an encoder of audio: wav2vec 2.0 or Whisper."""
    loaded: AUDIO_ENCODER = context.models.auxiliary.audio_encoder(audio_encoder_name)
    return loaded


@node("AudioEncoderEncode", display_name=None, category="model/conditioning", python_module=MODULE)
def audio_encoder_encode(context: NodeContext, *, audio_encoder: AUDIO_ENCODER, audio: AUDIO) -> AUDIO_ENCODER_OUTPUT:
    """Encode audio. Whisper reads its first 30 s."""
    return audio_encoder.encode_audio(audio["waveform"], audio["sample_rate"])


NODES = (audio_encoder_loader, audio_encoder_encode)
