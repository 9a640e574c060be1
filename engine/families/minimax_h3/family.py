"""MiniMax H3 (MiniMax 2026): videos with stereo audio, after a prompt, images, videos and audio.

Compared with ComfyUI 0.33.0, since 0.30.0 does not have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, NotRecognised, Parameterisation
from darkroom.engine.families.minimax_h3.denoiser import MiniMaxH3Denoiser
from darkroom.engine.families.minimax_h3.fun_control import FUN_CONTROL
from darkroom.engine.families.minimax_h3.latents import AudioVideoLatentFormat
from darkroom.engine.families.minimax_h3.layers import MiniMaxH3Config
from darkroom.engine.families.minimax_h3.sampling import audio_video_flow_of
from darkroom.engine.families.minimax_h3.text import QWEN
from darkroom.engine.families.minimax_h3.transformer import (
    AUDIO_MARK,
    CURVE_FLOAT32_ENDS,
    FLOAT32_ENDS,
    MARK,
    MiniMaxH3Transformer,
    minimax_h3_config,
)
from darkroom.engine.families.minimax_h3.vae_files import AUDIO_AUTOENCODER, AUTOENCODER, MiniMaxH3LatentFormat
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

METADATA = "config"  # the name of the description in a file's metadata, which is JSON
DESCRIBED = ("norm_eps", "qk_norm_eps", "final_norm_eps", "sigma_shift_video", "sigma_shift_audio")
FLOW = Parameterisation(audio_video_flow_of, {"shift": 12.0, "audio_shift": 3.0}, AudioVideoLatentFormat)


def as_described(config: MiniMaxH3Config, metadata: Mapping[str, str]) -> MiniMaxH3Config:
    """Return the configuration with the numbers that no shape shows, as a file's metadata have them.

    Raises `NotRecognised` for metadata that are no description.
    """
    try:
        described: dict[str, Any] = json.loads(metadata.get(METADATA, "{}")).get("transformer") or {}
        told: dict[str, Any] = {name: float(described[name]) for name in DESCRIBED if name in described}
        return replace(config, **told)
    except (ValueError, AttributeError, TypeError) as error:
        raise NotRecognised(f"a network of videos with metadata that do not describe it ({error})") from error


def description(config: MiniMaxH3Config) -> dict[str, dict[str, object]]:
    """Return the metadata of a file with a network of this configuration."""
    usual = {item.name: item.default for item in fields(MiniMaxH3Config)}
    other = {name: getattr(config, name) for name in DESCRIBED if getattr(config, name) != usual[name]}
    return {METADATA: {"transformer": other}} if other else {}


def float32_ends_of(config: MiniMaxH3Config) -> tuple[str, ...]:
    """Return the ends of names of weights that stay float32: of a curve also those that read its coordinates."""
    return CURVE_FLOAT32_ENDS if config.curve_points else FLOAT32_ENDS


DENOISER = replace(
    transformer(
        MARK,
        configure=minimax_h3_config,
        build=MiniMaxH3Transformer,
        dtypes=DtypePolicy(prefers=("bfloat16",)),
    ),
    float32_ends=FLOAT32_ENDS,
    float32_ends_of=float32_ends_of,
    as_described=as_described,
    description=description,
)

FAMILY = ModelFamily(
    name="minimax_h3",
    label="MiniMax H3",
    file_words=("minimaxh3",),
    detect=detect_by(DENOISER, needs=(AUDIO_MARK,)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=MiniMaxH3Denoiser,
    text=(QWEN,),
    vae=AUTOENCODER,
    further_vaes=(AUDIO_AUTOENCODER,),
    latent_format=MiniMaxH3LatentFormat,
    model_patches=(FUN_CONTROL,),
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("MiniMaxH3AV", ("minimax",), untyped_slots=("qwen3vl_32b",)),
    default=Defaults(
        width=1344, height=768, steps=20, cfg=1.0, sampler_name="res_multistep", scheduler="simple",
        tflop=3530.0, attention=0.585, billions=33.123, video_latent="EmptyMiniMaxH3LatentAV",
        video_start="MiniMaxH3ImageToVideo", frames=124, frame_rate=24.0, frames_ratio=4,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "MiniMaxH3ImageToVideo", "KSampler", "VAEDecode", "VAEDecodeAudio",
        "CreateVideo",
    ),
    memory_usage_factor=0.114,
    parameterisation=FLOW,
    sizes={
        "full": MiniMaxH3Config(),
        "small": MiniMaxH3Config(
            hidden_size=128, num_layers=2, num_refiner_layers=1, num_heads=1, intermediate_size=256, text_dim=64,
            time_hidden_size=64, time_embed_dim=64,
        ),
    },
)  # fmt: skip
