"""ERNIE-Image and its Turbo model (Baidu 2026): one stream of image and text over the latents of Flux.2."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.ernie_image.denoiser import ErnieImageDenoiser
from darkroom.engine.families.ernie_image.text import MINISTRAL, SLOT
from darkroom.engine.families.ernie_image.transformer import (
    MARK,
    ErnieImageConfig,
    ErnieImageTransformer,
    ernie_image_config,
)
from darkroom.engine.families.flux2.vae_files import AUTOENCODER, Flux2LatentFormat
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.0, "multiplier": 1000.0})
DENOISER = transformer(
    MARK,
    configure=ernie_image_config,
    build=ErnieImageTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)

FAMILY = ModelFamily(
    name="ernie_image",
    label="ERNIE-Image",
    lineage=("flux2",),
    file_words=("ernieimage", "ernie"),
    detect=detect_by(DENOISER, needs=("x_embedder.proj.weight",)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=ErnieImageDenoiser,
    text=(MINISTRAL,),
    vae=AUTOENCODER,
    latent_format=Flux2LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux2", ("flux2",), untyped_slots=(SLOT,)),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=4.0, scheduler="simple",
        tflop=79.53, attention=0.099, billions=8.033,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyFlux2LatentImage", "KSampler", "VAEDecode",
    ),
    memory_usage_factor=10.0,
    parameterisation=FLOW,
    sizes={
        "full": ErnieImageConfig(),
        "small": ErnieImageConfig(hidden_size=128, intermediate_size=192, num_layers=2, context_dim=48),
    },
)  # fmt: skip
