"""Songs and empty latents of MiniMax Music 3."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.minimax_music3.denoiser import SCALE
from darkroom.engine.families.minimax_music3.frame_writer import FRAMES_PER_SECOND, MAX_FRAMES, FrameSampling
from darkroom.engine.families.minimax_music3.song_writer import NUM_FIRST_CODES
from darkroom.engine.families.minimax_music3.transformer import LATENT_CHANNELS, SAMPLES_PER_CELL, num_cells
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, FLOAT, LATENT
from darkroom.engine.nodes.widgets import Float, Int, PromptText

MODULE = "comfy_extras.nodes_minimax_music"
MAX_SEED = 0xFFFFFFFFFFFFFFFF
USUAL = FrameSampling()
Words = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]
Seconds = Annotated[
    float, Float(min=1 / FRAMES_PER_SECOND, max=MAX_FRAMES / FRAMES_PER_SECOND, step=1 / FRAMES_PER_SECOND)
]


def num_frames(seconds: float) -> int:
    """Return the frames of a song of this length, within those that the model writes."""
    return min(MAX_FRAMES, max(1, round(seconds * FRAMES_PER_SECOND)))


@node(
    "MiniMaxMusic3TextEncode",
    display_name="MiniMax Music3 Text Encode",
    category="model/conditioning/minimax music",
    python_module=MODULE,
    description="Write a song after a caption and lyrics by MiniMax Music 3's language model.",
    advanced=("cfg_scale", "top_k"),
    facts=NodeFacts(bounded_by="max_duration"),
)
def minimax_music3_text_encode(
    context: NodeContext,
    *,
    clip: CLIP,
    caption: Words,
    lyrics: Words,
    seed: Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)] = 0,
    max_duration: Seconds = 120.0,
    cfg_scale: Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)] = USUAL.cfg_scale,
    top_k: Annotated[int, Int(min=1, max=NUM_FIRST_CODES)] = USUAL.top_k,
) -> tuple[CONDITIONING, Annotated[FLOAT, Out("seconds")]]:
    """Write a song of at most `max_duration` seconds; return its states and its length in seconds.

    Raises ValueError for a song that ends before it begins.
    """
    tokens = clip.tokenize(
        caption, lyrics=lyrics, seed=seed, max_audio_frames=num_frames(max_duration), cfg_scale=cfg_scale, top_k=top_k
    )
    conditioning = clip.encode_from_tokens_scheduled(tokens)
    states: torch.Tensor = conditioning[0][0]
    scaled = with_options(conditioning, **{SCALE: torch.ones(states.shape[0], 1, 1)})
    return scaled, states.shape[1] / FRAMES_PER_SECOND


@node(
    "EmptyMiniMaxMusic3LatentAudio",
    display_name="Empty MiniMax Music3 Latent Audio",
    category="model/latent/minimax music",
    python_module=MODULE,
    description="Make an empty latent of a song for MiniMax Music 3.",
)
def empty_minimax_music3_latent_audio(
    context: NodeContext,
    *,
    seconds: Seconds = 120.0,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    """Return an empty latent of songs of this length in seconds."""
    length = num_cells(num_frames(seconds))
    samples = torch.zeros([batch_size, LATENT_CHANNELS, length])  # [B, C, L]
    return {"samples": samples, "type": "audio", "downscale_ratio_temporal": SAMPLES_PER_CELL}


NODES = (minimax_music3_text_encode, empty_minimax_music3_latent_audio)
