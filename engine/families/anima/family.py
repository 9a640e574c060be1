"""Anima (CircleStone Labs and Comfy Org 2026, https://huggingface.co/circlestone-labs/Anima): drawn images.

Cosmos-Predict2's network of 2 billion weights, which reads Qwen3 0.6B by way of T5's tokens and a text adapter.
"""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.anima.denoiser import AnimaDenoiser
from darkroom.engine.families.anima.lllite import LLLITE
from darkroom.engine.families.anima.text import QWEN
from darkroom.engine.families.anima.text_adapter import TextAdapterConfig
from darkroom.engine.families.anima.transformer import ADAPTER_MARK, AnimaConfig, AnimaTransformer, anima_config
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.cosmos_predict2.family import PREFIXES, TEXT_TYPES
from darkroom.engine.families.cosmos_predict2.transformer import MARK, PATCHES
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.families.wan.vae_files import WAN_VAE, WanLatentFormat
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.0, "multiplier": 1.0})
DENOISER = transformer(
    MARK,
    configure=anima_config,
    build=AnimaTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
    prefixes=PREFIXES,
)

FAMILY = ModelFamily(
    name="anima",
    label="Anima",
    lineage=("cosmos_predict2",),
    file_words=("anima",),
    other_file_words=("animate", "animagine", "animatediff", "animation"),
    detect=detect_by(DENOISER, needs=(PATCHES, ADAPTER_MARK)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=AnimaDenoiser,
    text=(QWEN,),
    vae=WAN_VAE,
    latent_format=WanLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    model_patches=(LLLITE,),
    variants={"": ()},
    comfyui=ComfyUiNames("Wan21", TEXT_TYPES),
    default=Defaults(
        width=1024, height=1024, steps=30, cfg=4.0, sampler_name="er_sde", scheduler="simple",
        tflop=17.9, attention=0.21, billions=2.091,
    ),
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=0.95,
    parameterisation=FLOW,
    sizes={
        "full": AnimaConfig(width=2048, num_blocks=28, context_dim=1024, inner_width=8192, rank=256),
        "small": AnimaConfig(
            width=256, num_blocks=2, context_dim=64, inner_width=512, rank=32,
            adapter=TextAdapterConfig(
                source_dim=128, text_dim=64, hidden_size=64, head_dim=16, num_blocks=2, intermediate_size=128
            ),
        ),
    },
)  # fmt: skip
