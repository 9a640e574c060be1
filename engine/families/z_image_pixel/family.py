"""Z-Image on pixels, without a VAE (Zeta-Chroma, 2026; ComfyUI's `ZImagePixelSpace`)."""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.chroma_radiance.pixel_space import PixelLatentFormat, pixel_space
from darkroom.engine.families.lumina2.layers import FLOAT32_EPS, MARK, TIME_LAYER
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.families.vae_files import PREFIX as VAE_PREFIX
from darkroom.engine.families.z_image.denoiser import ZImageDenoiser
from darkroom.engine.families.z_image.diffusers_names import lora_keys
from darkroom.engine.families.z_image.family import CONTEXT_DIM, QWEN
from darkroom.engine.families.z_image_pixel.transformer import (
    DECODER,
    ZImagePixelConfig,
    ZImagePixelTransformer,
    z_image_pixel_config,
)
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.0, "multiplier": 1.0})

DENOISER = transformer(
    MARK,
    configure=z_image_pixel_config,
    build=ZImagePixelTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
)


class ZImagePixelLatentFormat(PixelLatentFormat):
    """Images as latents; an empty latent of other cells gets the size of the same image."""


FAMILY = ModelFamily(
    name="z_image_pixel",
    label="Z-Image in pixel space",
    lineage=("z_image", "chroma_radiance"),
    file_words=("zetachroma", "zimagepixel"),
    detect=detect_by(DENOISER, needs=(TIME_LAYER, DECODER)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=ZImageDenoiser,
    text=(QWEN,),
    vae=pixel_space(VAE_PREFIX),
    latent_format=ZImagePixelLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("ZImagePixelSpace", ("lumina2",)),
    default=Defaults(
        width=1024, height=1024, steps=30, cfg=4.0, scheduler="simple",
        tflop=16.0, attention=0.03, billions=6.499,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyChromaRadianceLatentImage", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=0.03,
    parameterisation=FLOW,
    sizes={
        "full": ZImagePixelConfig(
            width=3840, heads=30, key_heads=30, inner_width=10240, num_layers=30, context_dim=CONTEXT_DIM,
            time_width=256, time_inner=1024, activates_time=False, pads_tokens=True, query_eps=FLOAT32_EPS,
            axes=(32, 48, 48), theta=256.0, time_factor=1000.0, has_image_mark=True,
        ),
        "small": ZImagePixelConfig(
            width=256, heads=2, key_heads=2, inner_width=256, num_layers=2, context_dim=16, time_width=64,
            time_inner=64, num_refiners=1, activates_time=False, pads_tokens=True, query_eps=FLOAT32_EPS,
            axes=(32, 48, 48), theta=256.0, time_factor=1000.0, patch=8, decoder_size=32, num_decoder_layers=2,
            num_frequencies=4,
        ),
    },
)  # fmt: skip
