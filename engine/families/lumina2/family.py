"""Lumina-Image 2.0 (Qin et al. 2025, arXiv 2503.21758): a Next-DiT that reads Gemma 2."""

from __future__ import annotations

from functools import partial

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
)
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser
from darkroom.engine.families.lumina2.layers import MARK, POOLED, TIME_LAYER, Lumina2Config, lumina2_config
from darkroom.engine.families.lumina2.transformer import Lumina2Transformer
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.text.language_model import language_text_encoder
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.layers.language_model import GEMMA2, LanguageModelConfig
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.language_encoding import LanguageEncoding
from darkroom.engine.text.language_tokens import LanguageTokenizer

VAE_PREFIX = "vae."
CONTEXT_DIM = 2304
START_TOKEN = 2
SPECIAL = {"<end_of_turn>": 107}
FLOW = Parameterisation(flow_of, {"shift": 6.0, "multiplier": 1.0})

DENOISER = transformer(
    MARK,
    configure=lumina2_config,
    build=Lumina2Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
)


GEMMA = language_text_encoder(
    LanguageEncoding(slot="gemma2_2b", embedding_width=CONTEXT_DIM, layer=-2, start_token=START_TOKEN),
    kind=GEMMA2,
    sizes={
        "full": LanguageModelConfig(
            kind=GEMMA2, num_layers=26, width=CONTEXT_DIM, heads=8, key_heads=4, inner_width=9216,
            vocabulary_size=256000, norms_outputs=True,
        ),
        "small": LanguageModelConfig(
            kind=GEMMA2, num_layers=2, width=64, heads=2, key_heads=1, inner_width=128, vocabulary_size=512,
            norms_outputs=True,
        ),
    },
    tokenizer_type=partial(LanguageTokenizer, special=SPECIAL),
)  # fmt: skip

FAMILY = ModelFamily(
    name="lumina2",
    label="Lumina Image 2.0",
    lineage=("flux",),
    file_words=("lumina2", "luminaimage2"),
    # Recognised by its refining blocks, without the traits of others that have such blocks.
    detect=detect_by(DENOISER, lacks=(TIME_LAYER, POOLED)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=TextTokensDenoiser,
    text=(GEMMA,),
    vae=autoencoder_16(VAE_PREFIX),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux", ("lumina2",), untyped_slots=("gemma2_2b",)),
    default=Defaults(
        width=1024, height=1024, steps=25, cfg=4.0, sampler_name="res_multistep", scheduler="simple",
        tflop=23.8, attention=0.16, billions=2.61
    ),
    nodes=(
        "CheckpointLoaderSimple", "CLIPTextEncodeLumina2", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=1.2,
    parameterisation=FLOW,
    sizes={
        "full": Lumina2Config(
            width=2304, heads=24, key_heads=8, inner_width=9216, num_layers=26, context_dim=CONTEXT_DIM,
            time_width=1024, time_inner=1024, has_last_norm=True,
        ),
        "small": Lumina2Config(
            width=192, heads=2, key_heads=1, inner_width=256, num_layers=2, context_dim=64, time_width=64,
            time_inner=64, num_refiners=1,
        ),
    },
)  # fmt: skip
