"""Prompts, reference audio and empty latents of ACE-Step 1.5."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.ace_step15.denoiser import TIMBRES
from darkroom.engine.families.ace_step15.text import LONGEST_SECONDS, SETTINGS_SLOT, writes_codes
from darkroom.engine.families.ace_step15.vae_files import AceStep15LatentFormat
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, LATENT
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, PromptText

CHANNELS, RATE_HZ, SAMPLES_PER_CELL = 64, 48000, 1920
MODULE = "comfy_extras.nodes_ace"
MAX_SEED = 0xFFFFFFFFFFFFFFFF
LANGUAGES = (
    "ar", "az", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hr", "ht", "hu",
    "id", "is", "it", "ja", "ko", "la", "lt", "ms", "ne", "nl", "no", "pa", "pl", "pt", "ro", "ru", "sa", "sk", "sr",
    "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "yue", "zh", "unknown",
)  # fmt: skip
ROOTS = ("C", "C#", "Db", "D", "D#", "Eb", "E", "F", "F#", "Gb", "G", "G#", "Ab", "A", "A#", "Bb", "B")
KEYS = tuple(f"{root} {mode}" for mode in ("major", "minor") for root in ROOTS)
Words = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]


@node(
    "TextEncodeAceStepAudio1.5",
    display_name=None,
    category="model/conditioning/ace",
    python_module=MODULE,
    advanced=("generate_audio_codes", "cfg_scale", "temperature", "top_p", "top_k", "min_p"),
)
def text_encode_ace_step_audio15(
    context: NodeContext,
    *,
    clip: CLIP,
    tags: Words,
    lyrics: Words,
    seed: Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)] = 0,
    bpm: Annotated[int, Int(min=10, max=300)] = 120,
    duration: Annotated[float, Float(min=0.0, max=LONGEST_SECONDS, step=0.1)] = 120.0,
    timesignature: Annotated[str, Combo(("2", "3", "4", "6"))],
    language: Annotated[str, Combo(LANGUAGES)] = "en",
    keyscale: Annotated[str, Combo(KEYS)],
    generate_audio_codes: Annotated[bool, Flag()] = True,
    cfg_scale: Annotated[float, Float(min=0.0, max=100.0, step=0.1)] = 2.0,
    temperature: Annotated[float, Float(min=0.0, max=2.0, step=0.01)] = 0.85,
    top_p: Annotated[float, Float(min=0.0, max=2000.0, step=0.01)] = 0.9,
    top_k: Annotated[int, Int(min=0, max=100)] = 0,
    min_p: Annotated[float, Float(min=0.0, max=1.0, step=0.001)] = 0.0,
) -> CONDITIONING:
    """Encode tags and lyrics of a song, and let the language model write codes of a draft of it.

    Raises ValueError for codes where the text encoders have no model that writes any.
    """
    tokens = clip.tokenize(
        tags, lyrics=lyrics, bpm=bpm, duration=duration, timesignature=int(timesignature), language=language,
        keyscale=keyscale, seed=seed, generate_audio_codes=generate_audio_codes, cfg_scale=cfg_scale,
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
    )  # fmt: skip
    if generate_audio_codes and tokens.get(SETTINGS_SLOT) is not None and not writes_codes(clip.cond_stage_model):
        raise ValueError(
            "clip: no language model for codes; got Qwen3 0.6B alone, expected the one of 1.7B or 4B with it "
            "(DualCLIPLoader of type 'ace'), or generate_audio_codes off"
        )
    return clip.encode_from_tokens_scheduled(tokens)


@node(
    "EmptyAceStep1.5LatentAudio",
    display_name="Empty Ace Step 1.5 Latent Audio",
    category="model/latent/ace",
    python_module=MODULE,
)
def empty_ace_step15_latent_audio(
    context: NodeContext,
    *,
    seconds: Annotated[float, Float(min=1.0, max=1000.0, step=0.01)] = 120.0,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    """Return an empty latent of songs of this length in seconds."""
    length = round(seconds * RATE_HZ / SAMPLES_PER_CELL)
    samples = torch.zeros([batch_size, CHANNELS, length])  # [B, C, L]
    ratio = AceStep15LatentFormat.temporal_downscale_ratio
    return {"samples": samples, "type": "audio", "downscale_ratio_temporal": ratio}


@node(
    "ReferenceTimbreAudio",
    display_name="Set Reference Audio",
    category="model/conditioning",
    python_module=MODULE,
    description="Set the latent of audio whose timbre and draft an ACE-Step 1.5 model follows.",
    experimental=True,
)
def reference_timbre_audio(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    latent: Annotated[LATENT | None, Optional()] = None,
) -> CONDITIONING:
    """Give a conditioning the latent of reference audio, behind earlier ones: the last one counts."""
    return conditioning if latent is None else with_appended(conditioning, TIMBRES, latent["samples"])


NODES = (text_encode_ace_step_audio15, empty_ace_step15_latent_audio, reference_timbre_audio)
