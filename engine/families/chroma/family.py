"""Chroma (Lodestone Rock 2025): Flux.1 schnell's transformer, its modulations distilled to one small network.

A prompt is read by T5 alone, without padding.
"""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
)
from darkroom.engine.families.chroma.denoiser import ChromaDenoiser
from darkroom.engine.families.chroma.transformer import MARK, ChromaConfig, ChromaTransformer, chroma_config
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.flux.lora import lora_keys
from darkroom.engine.families.flux.scale_names import with_later_names
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.t5_encoding import T5Encoding

TEXT_HOME = "cond_stage_model."  # ComfyUI has the old names for checkpoints of this family
NEEDED = ("img_in.weight", "double_blocks.0.img_attn.norm.key_norm.scale")
CONTEXT_DIM = 4096
FLOW = Parameterisation(flux_flow_of, {"shift": 1.15})
DENOISER = with_later_names(
    transformer(
        MARK,
        configure=chroma_config,
        build=ChromaTransformer,
        dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
    ),
    MARK,
)


FAMILY = ModelFamily(
    name="chroma",
    label="Chroma",
    lineage=("flux",),
    file_words=("chroma1", "chromaunlocked", "chromahd", "chromadc"),
    # Recognised by the norms of its approximator, and by the layer that reads patches of latents.
    detect=detect_by(DENOISER, needs=NEEDED),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=ChromaDenoiser,
    text=(t5_xxl(T5Encoding(min_length=1, empty_has_end=False), home=TEXT_HOME),),
    vae=autoencoder_16(),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux", ("chroma",)),
    default=Defaults(
        width=1024, height=1024, steps=26, cfg=4.0, scheduler="beta",
        tflop=69.7, attention=0.14, billions=8.9,
    ),
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=3.2,
    parameterisation=FLOW,
    sizes={
        "full": ChromaConfig(
            width=3072, num_double=19, num_single=38, context_dim=CONTEXT_DIM, approximator_width=5120,
            approximator_layers=5,
        ),
        "small": ChromaConfig(
            width=256, num_double=3, num_single=3, context_dim=128, approximator_width=64, approximator_layers=2
        ),
    },
)  # fmt: skip
