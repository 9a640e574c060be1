"""Lens and Lens Turbo (Microsoft 2026): two streams that read four layers of GPT-OSS 20B."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.flux2.vae_files import AUTOENCODER, Flux2LatentFormat
from darkroom.engine.families.lens.denoiser import LensDenoiser
from darkroom.engine.families.lens.text import GPT_OSS
from darkroom.engine.families.lens.transformer import GATED, MARK, TEXT_NORM, LensConfig, LensTransformer, lens_config
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flux_flow_of, {"shift": 1.829})
DENOISER = transformer(
    MARK,
    configure=lens_config,
    build=LensTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)

FAMILY = ModelFamily(
    name="lens",
    label="Lens",
    lineage=("flux2",),
    file_words=("lens",),
    detect=detect_by(DENOISER, needs=(GATED, TEXT_NORM)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=LensDenoiser,
    text=(GPT_OSS,),
    vae=AUTOENCODER,
    latent_format=Flux2LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux2", ("lens",), untyped_slots=("gpt_oss",)),
    default=Defaults(
        width=1440, height=1440, steps=20, cfg=5.0, scheduler="simple", tflop=43.3, attention=0.442, billions=4.104,
    ),
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=4.0,
    parameterisation=FLOW,
    sizes={
        "full": LensConfig(),
        "small": LensConfig(hidden_size=128, intermediate_size=341, num_layers=2, text_dim=64),
    },
)  # fmt: skip
