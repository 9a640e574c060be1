"""Krea 2, Raw and Turbo (Krea 2026): one stream of text and image that reads twelve layers of Qwen3-VL.

Compared with ComfyUI 0.30.0, since 0.3.64 does not have it.
"""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.krea2.denoiser import Krea2Denoiser
from darkroom.engine.families.krea2.diffusers_names import lora_keys
from darkroom.engine.families.krea2.text import LAYERS, QWEN, WIDTH
from darkroom.engine.families.krea2.transformer import MARK, FusionConfig, Krea2Config, Krea2Transformer, krea2_config
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.families.wan.vae_files import WAN_VAE, WanLatentFormat
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flux_flow_of, {"shift": 1.15})
NUM_BLOCKS = 28
MERGED_BLOCKS = (
    "first.", "tmlp.", "txtmlp.", "tproj.", *(f"txtfusion.layerwise_blocks.{index}." for index in range(2)),
    "txtfusion.projector.", *(f"txtfusion.refiner_blocks.{index}." for index in range(2)),
    *(f"blocks.{index}." for index in range(NUM_BLOCKS)), "last.",
)  # fmt: skip

DENOISER = transformer(
    MARK,
    configure=krea2_config,
    build=Krea2Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
)

FAMILY = ModelFamily(
    name="krea2",
    label="Krea 2",
    lineage=("lumina2", "qwen_image"),
    file_words=("krea2",),
    detect=detect_by(DENOISER),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=Krea2Denoiser,
    text=(QWEN,),
    vae=WAN_VAE,
    latent_format=WanLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Wan21", ("krea2",), {"ModelMergeKrea2": MERGED_BLOCKS}),
    default=Defaults(
        width=1024, height=1024, steps=8, cfg=1.0, scheduler="simple",
        tflop=120.0, attention=0.065, billions=12.82,
    ),
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=2.2,
    parameterisation=FLOW,
    sizes={
        "full": Krea2Config(
            width=6144, key_heads=12, inner_width=16384, num_blocks=NUM_BLOCKS,
            text=FusionConfig(num_layers=len(LAYERS), width=WIDTH, heads=20, key_heads=20, inner_width=6912),
        ),
        "small": Krea2Config(
            width=256, key_heads=1, inner_width=768, num_blocks=2,
            text=FusionConfig(num_layers=len(LAYERS), width=32, heads=2, key_heads=2, inner_width=128),
        ),
    },
)  # fmt: skip
