"""JoyAI-Image (JD 2026, https://github.com/jdopensource/JoyAI-Image-Edit): generates and edits images.

It reads Qwen3-VL 8B, and reference images in the stream of the one that it generates.
"""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.joyimage.denoiser import JoyImageDenoiser
from darkroom.engine.families.joyimage.text import QWEN
from darkroom.engine.families.joyimage.transformer import (
    FIRST,
    MARK,
    TEXT,
    JoyImageConfig,
    JoyImageTransformer,
    joyimage_config,
)
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.families.wan.vae_files import WAN_VAE, WanLatentFormat
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 1.5, "multiplier": 1000})
DENOISER = transformer(
    MARK,
    configure=joyimage_config,
    build=JoyImageTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)

FAMILY = ModelFamily(
    name="joyimage",
    label="JoyAI-Image",
    lineage=("wan",),
    file_words=("joyai", "joyimage"),
    detect=detect_by(DENOISER, needs=(FIRST, TEXT)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=JoyImageDenoiser,
    text=(QWEN,),
    vae=WAN_VAE,
    latent_format=WanLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Wan21", ("joyimage",)),
    default=Defaults(
        width=1024, height=1024, steps=40, cfg=4.0, scheduler="normal",
        tflop=82.5, attention=0.12, billions=16.264,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "TextEncodeJoyImageEdit", "EmptySD3LatentImage", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=1.8,
    parameterisation=FLOW,
    sizes={
        "full": JoyImageConfig(),
        "small": JoyImageConfig(hidden_size=256, num_layers=2, context_dim=64, intermediate_size=1024),
    },
)  # fmt: skip
