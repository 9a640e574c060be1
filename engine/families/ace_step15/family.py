"""ACE-Step 1.5 (ACE Studio and StepFun 2026): songs from tags, lyrics, codes of a language model and reference audio.

Base, SFT and Turbo have one network, XL a wider one. Compared with ComfyUI 0.33.0.
"""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.ace_step15.attention import Width
from darkroom.engine.families.ace_step15.denoiser import AceStep15Denoiser
from darkroom.engine.families.ace_step15.lora import lora_keys
from darkroom.engine.families.ace_step15.text import CODES_2B, CODES_4B, QWEN_06B, song_conditioning
from darkroom.engine.families.ace_step15.transformer import (
    FIRST,
    KEY,
    AceStep15Config,
    AceStep15Transformer,
    ace_step15_config,
)
from darkroom.engine.families.ace_step15.vae_files import AUTOENCODER, AceStep15LatentFormat
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.0, "multiplier": 1.0})
DENOISER = transformer(
    KEY,
    configure=ace_step15_config,
    build=AceStep15Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)

FAMILY = ModelFamily(
    name="ace_step15",
    label="ACE-Step 1.5",
    lineage=("stable_audio",),
    file_words=("acestep15", "acestepv15", "acestepxl", "ace15"),
    detect=detect_by(DENOISER, needs=(FIRST,)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=AceStep15Denoiser,
    text=(QWEN_06B, CODES_2B, CODES_4B),
    combine_text=song_conditioning,
    num_taken_encoders=2,
    vae=AUTOENCODER,
    latent_format=AceStep15LatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("ACEAudio15", ("ace",)),
    default=Defaults(
        width=440, height=440, steps=8, cfg=1.0, scheduler="simple", tflop=7.18, attention=0.08, billions=2.394,
        shift=3.0, audio_latent="EmptyAceStep1.5LatentAudio", audio_text="TextEncodeAceStepAudio1.5",
        seconds=120.0, max_seconds=600.0,
    ),
    nodes=(
        "UNETLoader", "DualCLIPLoader", "VAELoader", "TextEncodeAceStepAudio1.5", "ConditioningZeroOut",
        "EmptyAceStep1.5LatentAudio", "KSampler", "VAEDecodeAudio",
    ),
    memory_usage_factor=4.7,
    parameterisation=FLOW,
    sizes={
        "full": AceStep15Config(),
        "small": AceStep15Config(
            width=Width(128, 256, 8, 8), encoder_width=Width(64, 128, 8, 8), num_layers=3, context_dim=32,
        ),
    },
)  # fmt: skip
