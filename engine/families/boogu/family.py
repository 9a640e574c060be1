"""Boogu-Image 0.1 (2026), base, turbo and edit: OmniGen2's network with blocks of two streams, which reads Qwen3-VL 8B.

Reference images are among its tokens.
"""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.boogu.denoiser import BooguDenoiser
from darkroom.engine.families.boogu.text import QWEN
from darkroom.engine.families.boogu.transformer import MARK, BooguConfig, BooguTransformer, boogu_config
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.text.qwen3_vl import QWEN3_VL_8B_WIDTH
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.16, "multiplier": 1.0})
DENOISER = transformer(
    MARK,
    configure=boogu_config,
    build=BooguTransformer,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)

FAMILY = ModelFamily(
    name="boogu",
    label="Boogu-Image",
    lineage=("omnigen2",),
    file_words=("boogu",),
    detect=detect_by(DENOISER),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=BooguDenoiser,
    text=(QWEN,),
    vae=autoencoder_16("vae."),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux", ("boogu",)),
    default=Defaults(
        width=1024, height=1024, steps=25, cfg=3.5, sampler_name="dpmpp_2m", scheduler="simple",
        tflop=75.4, attention=0.137, billions=10.293,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "TextEncodeBooguEdit", "EmptyLatentImage",
        "KSampler", "VAEDecode",
    ),
    memory_usage_factor=2.15,
    parameterisation=FLOW,
    sizes={
        "full": BooguConfig(
            width=3360, heads=28, key_heads=7, inner_width=13568, num_layers=32, context_dim=QWEN3_VL_8B_WIDTH,
            time_width=1024,
        ),
        "small": BooguConfig(
            width=240, heads=2, key_heads=1, inner_width=256, num_layers=2, context_dim=64, time_width=240,
            num_refiners=1, num_double=2,
        ),
    },
)  # fmt: skip
