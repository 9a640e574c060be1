"""PiD, versions 1 and 1.5 (NVIDIA 2026): decodes a latent to an image four times as large, by PixelDiT's network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.pid.config import LATENT_PROJECTION, PiDConfig, pid_config
from darkroom.engine.families.pid.denoiser import PiDDenoiser
from darkroom.engine.families.pid.transformer import PiDTransformer
from darkroom.engine.families.pixeldit.config import FIRST_BLOCK, MARK
from darkroom.engine.families.pixeldit.family import DENOISER as PIXELDIT
from darkroom.engine.families.pixeldit.family import PIXELS, PixelDiTLatentFormat
from darkroom.engine.families.pixeldit.text import GEMMA
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by

FLOW = Parameterisation(flow_of, {"shift": 1.5})
DENOISER = replace(PIXELDIT, configure=pid_config, build=PiDTransformer, saved=partial(saved_behind, PREFIX))

FAMILY = ModelFamily(
    name="pid",
    label="PiD",
    lineage=("pixeldit",),
    file_words=("pid",),
    detect=detect_by(DENOISER, needs=(MARK, f"{FIRST_BLOCK}qkv_x.weight", LATENT_PROJECTION)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=PiDDenoiser,
    text=(GEMMA,),
    vae=PIXELS,
    latent_format=PixelDiTLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("PixelDiTPixel", ("pixeldit",)),
    default=Defaults(
        width=2048, height=2048, steps=4, cfg=1.0, scheduler="simple", tflop=45.0, attention=0.567, billions=1.362,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "PiDConditioning", "EmptyChromaRadianceLatentImage",
        "KSampler", "VAEDecode",
    ),
    memory_usage_factor=0.04,
    parameterisation=FLOW,
    sizes={
        "full": PiDConfig(),
        "small": PiDConfig(
            hidden_size=128, intermediate_size=341, num_layers=3, context_dim=64, pixel_attention_size=144,
            num_pixel_layers=1, latent_size=32, num_latent_blocks=1, num_features=2,
        ),
    },
)  # fmt: skip
