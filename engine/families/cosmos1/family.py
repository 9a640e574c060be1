"""Cosmos 1 (NVIDIA 2025, arXiv 2501.03575), 7B and 14B: videos from text, and videos that continue images."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling import EdmContinuous
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
)
from darkroom.engine.families.cosmos1.denoiser import CosmosDenoiser, CosmosImageDenoiser
from darkroom.engine.families.cosmos1.transformer import (
    MARK,
    PATCHES,
    Cosmos1Config,
    Cosmos1Transformer,
    cosmos1_config,
)
from darkroom.engine.families.cosmos1.vae_files import AUTOENCODER, CosmosLatentFormat
from darkroom.engine.families.cosmos_predict2.given_cells import GIVEN
from darkroom.engine.families.cosmos_predict2.text import CONTEXT_DIM, TEXT
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by, transformer, with_variants
from darkroom.engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "net.", "")  # of files of the network alone
LEVELS = Parameterisation(EdmContinuous, {"sigma_data": 0.5, "sigma_max": 80.0, "sigma_min": 0.002})
VARIANTS = {16: "", 17: "image"}  # by the channels that the network sees
DEFAULT = Defaults(
    width=1280, height=704, steps=20, cfg=6.5, sampler_name="res_multistep", scheduler="karras",
    tflop=2200.0, attention=0.66, billions=7.236,
    video_latent="EmptyCosmosLatentVideo", frames=121, frame_rate=24.0, frames_ratio=8,
)  # fmt: skip
EDGES = ("pos_embedder.", "extra_pos_embedder.", "x_embedder.", "t_embedder.", "affline_norm.")

DENOISER = transformer(
    MARK,
    configure=cosmos1_config,
    build=Cosmos1Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
    prefixes=PREFIXES,
)


def merged_blocks(num_blocks: int) -> tuple[str, ...]:
    return (*EDGES, *(f"blocks.block{index}." for index in range(num_blocks)), "final_layer.")


FAMILY = ModelFamily(
    name="cosmos1",
    label="Cosmos 1",
    lineage=("cosmos_predict2",),
    file_words=("cosmos1", "cosmos10"),
    # Recognised by its blocks, and by whether its first layer reads which cells are given.
    detect=with_variants(detect_by(DENOISER, needs=(PATCHES,)), DENOISER, VARIANTS),
    parameterise=always(LEVELS),
    denoiser=DENOISER,
    denoiser_type=CosmosDenoiser,
    text=(TEXT,),
    vae=AUTOENCODER,
    latent_format=CosmosLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": (), "image": (GIVEN,)},
    variant_types={"image": CosmosImageDenoiser},
    variant_defaults={"image": replace(DEFAULT, video_latent=None, video_start="CosmosImageToVideoLatent")},
    comfyui=ComfyUiNames(
        "Cosmos1CV8x8x8",
        ("cosmos",),
        {"ModelMergeCosmos7B": merged_blocks(28), "ModelMergeCosmos14B": merged_blocks(36)},
    ),
    default=DEFAULT,
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyCosmosLatentVideo", "KSampler",
           "VAEDecode", "SaveWEBM"),
    memory_usage_factor=1.6,
    parameterisation=LEVELS,
    sizes={
        "full": Cosmos1Config(
            width=4096, num_blocks=28, context_dim=CONTEXT_DIM, inner_width=16384, rank=256, stretch=(2.0, 1.0, 1.0)
        ),
        "small": Cosmos1Config(
            width=256, num_blocks=3, context_dim=64, inner_width=1024, rank=32, stretch=(2.0, 1.0, 1.0)
        ),
    },
)  # fmt: skip
