"""Prompts and empty latents of ACE-Step."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, LATENT
from darkroom.engine.nodes.widgets import Float, Int, PromptText

CHANNELS, ROWS, RATE_HZ, HOP, FRAMES_PER_CELL = 8, 16, 44100, 512, 8
MODULE = "comfy_extras.nodes_ace"
Words = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]


@node("TextEncodeAceStepAudio", display_name=None, category="model/conditioning/ace", python_module=MODULE)
def text_encode_ace_step_audio(
    context: NodeContext,
    *,
    clip: CLIP,
    tags: Words,
    lyrics: Words,
    lyrics_strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
) -> CONDITIONING:
    """Encode tags, such as genre and instruments, and the lyrics of a song."""
    tokens = clip.tokenize(tags, lyrics=lyrics)
    return clip.encode_from_tokens_scheduled(tokens, add_dict={"lyrics_strength": lyrics_strength})


@node(
    "EmptyAceStepLatentAudio",
    display_name="Empty Ace Step 1.0 Latent Audio",
    category="model/latent/ace",
    python_module=MODULE,
)
def empty_ace_step_latent_audio(
    context: NodeContext,
    *,
    seconds: Annotated[float, Float(min=1.0, max=1000.0, step=0.1)] = 120.0,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    """Return an empty latent of songs of this length in seconds."""
    length = int(seconds * RATE_HZ / HOP / FRAMES_PER_CELL)
    latent: LATENT = {"samples": torch.zeros([batch_size, CHANNELS, ROWS, length]), "type": "audio"}  # [B, C, h, L]
    return latent


NODES = (text_encode_ace_step_audio, empty_ace_step_latent_audio)
