"""LongCat-Image and LongCat-Image-Edit (Meituan 2025): Flux.1's blocks and latents, after Qwen2.5-VL."""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.flux.lora import lora_keys
from darkroom.engine.families.flux.scale_names import with_later_names
from darkroom.engine.families.flux.transformer import GUIDANCE, MARK
from darkroom.engine.families.longcat_image.denoiser import LongCatImageDenoiser
from darkroom.engine.families.longcat_image.text import QWEN
from darkroom.engine.families.longcat_image.transformer import (
    LongCatImageConfig,
    LongCatImageTransformer,
    longcat_image_config,
)
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.families.vae_files import PREFIX as VAE_PREFIX
from darkroom.engine.settings import DtypePolicy

NEEDED = (
    "img_in.weight",
    "final_layer.linear.weight",
    "double_blocks.0.img_mod.lin.weight",
    "double_blocks.0.img_mlp.0.weight",
)
POOLED = "vector_in.in_layer.weight"  # of other networks of such blocks
FLOW = Parameterisation(flux_flow_of, {"shift": 1.15})
DENOISER = with_later_names(
    transformer(
        MARK,
        configure=longcat_image_config,
        build=LongCatImageTransformer,
        dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
    ),
    MARK,
)

FAMILY = ModelFamily(
    name="longcat_image",
    label="LongCat-Image",
    lineage=("flux",),
    file_words=("longcatimage", "longcat"),
    detect=detect_by(DENOISER, needs=NEEDED, lacks=(POOLED, GUIDANCE)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=LongCatImageDenoiser,
    text=(QWEN,),
    vae=autoencoder_16(VAE_PREFIX),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux", ("longcat_image",)),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=4.0, scheduler="simple",
        tflop=36.57, attention=0.145, billions=6.271,
    ),
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=2.5,
    parameterisation=FLOW,
    sizes={
        "full": LongCatImageConfig(),
        "small": LongCatImageConfig(width=128, num_double=2, num_single=2, context_dim=32),
    },
)  # fmt: skip
