"""MiniMax Music 3 (MiniMax 2026): songs of up to six minutes from a caption and lyrics.

A language model writes the song in codes, diffusion makes audio of its states. Compared with ComfyUI 0.33.0.
"""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.minimax_music3.denoiser import MiniMaxMusic3Denoiser
from darkroom.engine.families.minimax_music3.text import LANGUAGE_MODEL
from darkroom.engine.families.minimax_music3.transformer import (
    FIRST,
    FLOAT32_ENDS,
    KEY,
    STATES,
    MiniMaxMusic3Config,
    MiniMaxMusic3Transformer,
    minimax_music3_config,
)
from darkroom.engine.families.minimax_music3.vae_files import AUTOENCODER, MiniMaxMusic3LatentFormat
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 1.0, "multiplier": 1.0})
DENOISER = replace(
    transformer(
        KEY,
        configure=minimax_music3_config,
        build=MiniMaxMusic3Transformer,
        dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    ),
    float32_ends=FLOAT32_ENDS,
)

FAMILY = ModelFamily(
    name="minimax_music3",
    label="MiniMax Music 3",
    lineage=("stable_audio",),
    file_words=("minimaxmusic3",),
    detect=detect_by(DENOISER, needs=(FIRST, STATES)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=MiniMaxMusic3Denoiser,
    text=(LANGUAGE_MODEL,),
    text_dtypes=DtypePolicy(prefers=("bfloat16",)),
    vae=AUTOENCODER,
    latent_format=MiniMaxMusic3LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("MiniMaxMusic3", ("minimax",)),
    default=Defaults(
        width=816, height=816, steps=30, cfg=1.7, scheduler="simple", tflop=103.0, billions=2.457,
        audio_latent="EmptyMiniMaxMusic3LatentAudio", audio_text="MiniMaxMusic3TextEncode", seconds=120.0,
        max_seconds=300.0,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "MiniMaxMusic3TextEncode", "ConditioningZeroOut",
        "EmptyMiniMaxMusic3LatentAudio", "KSampler", "VAEDecodeAudio",
    ),
    memory_usage_factor=2.0,
    parameterisation=FLOW,
    sizes={
        "full": MiniMaxMusic3Config(),
        "small": MiniMaxMusic3Config(hidden_size=128, num_layers=2, condition_dim=32, state_dim=32),
    },
)  # fmt: skip
