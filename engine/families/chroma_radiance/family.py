"""Chroma Radiance (Lodestone Rock 2025): Chroma without an autoencoder, which draws the pixels themselves.

The yardstick is ComfyUI 0.3.64; for networks that predict the image and for texts with places, which it does not
have, it is 0.30.0. Where several patches are drawn at a time, 0.3.64 mixes up the images of a batch; 0.30.0 does not.
"""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
)
from darkroom.engine.families.chroma_radiance.denoiser import ChromaRadianceDenoiser
from darkroom.engine.families.chroma_radiance.pixel_space import PIXEL_SPACE, PixelLatentFormat
from darkroom.engine.families.chroma_radiance.transformer import (
    MARK,
    ChromaRadianceConfig,
    ChromaRadianceTransformer,
    chroma_radiance_config,
)
from darkroom.engine.families.flux.lora import lora_keys
from darkroom.engine.families.flux.scale_names import with_later_names
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.t5_encoding import T5Encoding

TEXT_HOME = "cond_stage_model."  # ComfyUI has the old names for checkpoints of this family
NEEDED = ("img_in_patch.weight", "distilled_guidance_layer.norms.0.scale")
PIXEL_EMBEDDER = ("nerf_image_embedder.embedder.0.weight", "nerf_image_embedder.embedder.0.bias")
CONTEXT_DIM = 4096
FLOW = Parameterisation(flux_flow_of, {"shift": 1.15})
DENOISER = with_later_names(
    replace(
        transformer(
            MARK,
            configure=chroma_radiance_config,
            build=ChromaRadianceTransformer,
            dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
        ),
        float32_ends=PIXEL_EMBEDDER,
    ),
    MARK,
)


FAMILY = ModelFamily(
    name="chroma_radiance",
    label="Chroma Radiance",
    lineage=("chroma",),
    file_words=("chromaradiance", "chroma1radiance"),
    # Recognised by the layers that draw pixels, and by the one that reads patches of them.
    detect=detect_by(DENOISER, needs=NEEDED),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=ChromaRadianceDenoiser,
    text=(t5_xxl(T5Encoding(min_length=1, empty_has_end=False), home=TEXT_HOME),),
    vae=PIXEL_SPACE,
    latent_format=PixelLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("ChromaRadiance", ("chroma",)),
    default=Defaults(
        width=1024, height=1024, steps=30, cfg=4.0, scheduler="beta",
        tflop=75.0, attention=0.13, billions=9.506,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyChromaRadianceLatentImage", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=0.038,
    parameterisation=FLOW,
    sizes={
        "full": ChromaRadianceConfig(
            width=3072, num_double=19, num_single=38, context_dim=CONTEXT_DIM, approximator_width=5120,
            approximator_layers=5,
        ),
        "small": ChromaRadianceConfig(
            width=256, num_double=3, num_single=3, context_dim=128, approximator_width=64, approximator_layers=2,
            pixel_width=16, num_pixel_layers=2, pixel_factor=2, num_frequencies=4,
        ),
    },
)  # fmt: skip
