"""TripoSplat (VAST AI Research 2026, https://github.com/VAST-AI-Research/TripoSplat): Gaussian splats from an image.

Compared with ComfyUI 0.33.0.
"""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.families.triposplat.denoiser import TripoSplatDenoiser
from darkroom.engine.families.triposplat.transformer import (
    CAMERA,
    FIRST,
    POSITIONS,
    TripoSplatConfig,
    TripoSplatTransformer,
    triposplat_config,
)
from darkroom.engine.families.triposplat.vae_files import DECODER, TripoSplatLatentFormat
from darkroom.engine.layers.dinov3 import Dinov3Config
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.0})
DENOISER = transformer(
    CAMERA,
    configure=triposplat_config,
    build=TripoSplatTransformer,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)

FAMILY = ModelFamily(
    name="triposplat",
    label="TripoSplat",
    file_words=("triposplat",),
    detect=detect_by(DENOISER, needs=(FIRST, POSITIONS)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=TripoSplatDenoiser,
    text=(),
    vae=DECODER,
    latent_format=TripoSplatLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    vision_prefix="conditioner.main_image_encoder.model.",
    comfyui=ComfyUiNames("TripoSplat"),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=3.0, scheduler="simple", tflop=23.8, attention=0.6, billions=0.3705,
    ),
    nodes=(
        "UNETLoader", "CLIPVisionLoader", "VAELoader", "LoadImage", "TripoSplatPreprocessImage",
        "TripoSplatConditioning", "KSampler", "VAEDecodeTripoSplat", "RenderSplat",
    ),
    memory_usage_factor=0.6,
    parameterisation=FLOW,
    sizes={
        "full": TripoSplatConfig(),
        "small": TripoSplatConfig(
            hidden_size=64, intermediate_size=64, num_layers=1, num_refiner_layers=1, num_heads=2, position_dim=8,
            context_dim=64, cell_dim=128,
        ),
    },
    vision={
        "full": Dinov3Config(num_layers=32, hidden_size=1280, intermediate_size=5120, is_gated=True),
        "small": Dinov3Config(num_layers=2, hidden_size=64, intermediate_size=64),
    },
)  # fmt: skip
