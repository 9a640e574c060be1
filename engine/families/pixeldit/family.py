"""PixelDiT (Yu et al. 2025, arXiv 2511.20645): generates the pixels of an image without an autoencoder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Network, Parameterisation
from darkroom.engine.families.chroma_radiance.pixel_space import MARK as PIXEL_MARK
from darkroom.engine.families.chroma_radiance.pixel_space import PIXEL_SPACE, PixelLatentFormat
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.pixeldit.config import FIRST_BLOCK, MARK, PixelDiTConfig, pixeldit_config
from darkroom.engine.families.pixeldit.denoiser import PixelDiTDenoiser
from darkroom.engine.families.pixeldit.text import GEMMA
from darkroom.engine.families.pixeldit.transformer import PixelDiTTransformer
from darkroom.engine.families.pixeldit.transformer_files import PREFIXES, pixel_layout
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by
from darkroom.engine.settings import DtypePolicy

LATENT_PROJECTION = "lq_proj.latent_proj.0.weight"  # of a network that is conditioned on a latent too
VAE_PREFIX = "vae."
FLOW = Parameterisation(flow_of, {"shift": 4.0})
DENOISER = Network(
    layouts=(pixel_layout(PREFIXES),),
    in_checkpoint=(pixel_layout((PREFIX,)),),
    configure=pixeldit_config,
    build=PixelDiTTransformer,
    saved=partial(saved_behind, f"{PREFIX}core."),
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)
PIXELS = replace(
    PIXEL_SPACE,
    in_checkpoint=(behind_first((VAE_PREFIX,), PIXEL_MARK),),
    saved=partial(saved_behind, VAE_PREFIX),
)


class PixelDiTLatentFormat(PixelLatentFormat):
    """Images as latents; empty latents of other networks get the size of the same image."""


FAMILY = ModelFamily(
    name="pixeldit",
    label="PixelDiT",
    lineage=("chroma_radiance",),
    file_words=("pixeldit",),
    detect=detect_by(DENOISER, needs=(MARK, f"{FIRST_BLOCK}qkv_x.weight"), lacks=(LATENT_PROJECTION,)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=PixelDiTDenoiser,
    text=(GEMMA,),
    vae=PIXELS,
    latent_format=PixelDiTLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("PixelDiTPixel", ("pixeldit",)),
    default=Defaults(
        width=1024, height=1024, steps=25, cfg=4.0, scheduler="simple", tflop=6.11, attention=0.253, billions=1.302,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyChromaRadianceLatentImage", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=0.04,
    parameterisation=FLOW,
    sizes={
        "full": PixelDiTConfig(),
        "small": PixelDiTConfig(
            hidden_size=128, intermediate_size=341, num_layers=2, context_dim=64, pixel_attention_size=144,
            num_pixel_layers=2,
        ),
    },
)  # fmt: skip
