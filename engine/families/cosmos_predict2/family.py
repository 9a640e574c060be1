"""Cosmos-Predict2 (NVIDIA 2025, https://github.com/nvidia-cosmos/cosmos-predict2), of both sizes.

From text to images, and videos that continue images.
"""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import cosmos_flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
)
from darkroom.engine.families.cosmos_predict2.denoiser import CosmosPredict2Denoiser, CosmosPredict2VideoDenoiser
from darkroom.engine.families.cosmos_predict2.given_cells import GIVEN
from darkroom.engine.families.cosmos_predict2.text import CONTEXT_DIM, TEXT
from darkroom.engine.families.cosmos_predict2.transformer import (
    MARK,
    PATCHES,
    CosmosPredict2Config,
    CosmosPredict2Transformer,
    cosmos_predict2_config,
)
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by, transformer, with_variants
from darkroom.engine.families.wan.vae_files import WAN_VAE, WanLatentFormat
from darkroom.engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "net.", "")  # of files of the network alone
FLOW = Parameterisation(cosmos_flow_of, {"sigma_data": 1.0, "sigma_max": 80.0, "sigma_min": 0.002})
# Its text encoder is known by its tensors alone: ComfyUI takes it under any type.
TEXT_TYPES = (
    "stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv", "pixart", "cosmos", "lumina2",
    "wan", "hidream", "chroma", "ace", "omnigen2", "qwen_image", "hunyuan_image",
)  # fmt: skip
VARIANTS = {16: "", 17: "video"}  # by the channels that the network sees
DEFAULT = Defaults(
    width=1024,
    height=1024,
    steps=35,
    cfg=4.0,
    scheduler="karras",
    tflop=17.6,
    attention=0.22,
    billions=1.956,
)
ADAPTER = "llm_adapter.blocks.0.cross_attn.q_proj.weight"  # of another family's network around this one
EDGES = ("pos_embedder.", "x_embedder.", "t_embedder.", "t_embedding_norm.")

DENOISER = transformer(
    MARK,
    configure=cosmos_predict2_config,
    build=CosmosPredict2Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
    prefixes=PREFIXES,
)


def merged_blocks(num_blocks: int) -> tuple[str, ...]:
    return (*EDGES, *(f"blocks.{index}." for index in range(num_blocks)), "final_layer.")


FAMILY = ModelFamily(
    name="cosmos_predict2",
    label="Cosmos-Predict2",
    lineage=("wan",),
    file_words=("cosmospredict2",),
    other_file_words=("cosmospredict25",),
    # Recognised by its feed-forward layers, and by whether its first layer reads a mask.
    # One with a text adapter is Anima's.
    detect=with_variants(detect_by(DENOISER, needs=(PATCHES,), lacks=(ADAPTER,)), DENOISER, VARIANTS),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=CosmosPredict2Denoiser,
    text=(TEXT,),
    vae=WAN_VAE,
    latent_format=WanLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": (), "video": (GIVEN,)},
    variant_types={"video": CosmosPredict2VideoDenoiser},
    variant_defaults={
        "video": replace(
            DEFAULT, width=848, height=480,
            tflop=462.0, attention=0.72, video_start="CosmosPredict2ImageToVideoLatent", frames=93,
            frame_rate=16.0, frames_ratio=4,
        )
    },
    comfyui=ComfyUiNames(
        "Wan21",
        TEXT_TYPES,
        {"ModelMergeCosmosPredict2_2B": merged_blocks(28), "ModelMergeCosmosPredict2_14B": merged_blocks(36)},
    ),
    default=DEFAULT,
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=0.9,
    parameterisation=FLOW,
    sizes={
        "full": CosmosPredict2Config(width=2048, num_blocks=28, context_dim=CONTEXT_DIM, inner_width=8192, rank=256),
        "small": CosmosPredict2Config(width=256, num_blocks=3, context_dim=64, inner_width=1024, rank=32),
    },
)  # fmt: skip
