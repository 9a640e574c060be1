"""ACE-Step v1 (Gong et al. 2025, arXiv 2506.00045): songs of up to four minutes from tags and lyrics."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.ace_step.denoiser import AceStepDenoiser
from darkroom.engine.families.ace_step.lyric_encoder import LyricEncoderConfig
from darkroom.engine.families.ace_step.text import UMT5_BASE
from darkroom.engine.families.ace_step.transformer import (
    FIRST,
    MARK,
    AceStepConfig,
    AceStepTransformer,
    ace_step_config,
)
from darkroom.engine.families.ace_step.vae_files import AUTOENCODER, AceStepLatentFormat
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.0})
DENOISER = transformer(
    MARK,
    configure=ace_step_config,
    build=AceStepTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)

FAMILY = ModelFamily(
    name="ace_step",
    label="ACE-Step",
    file_words=("acestep",),
    other_file_words=("acestep15", "acestepv15", "acestepxl"),
    detect=detect_by(DENOISER, needs=(FIRST,)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=AceStepDenoiser,
    text=(UMT5_BASE,),
    vae=AUTOENCODER,
    latent_format=AceStepLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("ACEAudio", ("ace",)),
    default=Defaults(
        width=288, height=288, steps=50, cfg=5.0, scheduler="simple", tflop=6.02, billions=2.588, shift=5.0,
        audio_latent="EmptyAceStepLatentAudio", audio_text="TextEncodeAceStepAudio", seconds=120.0, max_seconds=240.0,
    ),
    nodes=(
        "CheckpointLoaderSimple", "TextEncodeAceStepAudio", "EmptyAceStepLatentAudio", "KSampler", "VAEDecodeAudio",
    ),
    memory_usage_factor=0.5,
    parameterisation=FLOW,
    sizes={
        "full": AceStepConfig(width=2560, num_blocks=24),
        "small": AceStepConfig(
            width=128, num_blocks=3, context_dim=64, speaker_dim=32, num_lyric_tokens=300,
            lyrics=LyricEncoderConfig(width=64, num_blocks=2, heads=4, inner_width=128),
        ),
    },
)  # fmt: skip
