"""The refiner of Stable Diffusion XL (Podell et al. 2023, arXiv 2307.01952, 2.5), for the last part of the noise.

Its only text encoder is OpenCLIP ViT-bigG. It has the autoencoder of the model that it refines.
"""

from __future__ import annotations

from functools import partial

from darkroom.engine.adapters.lora_names import clip_text_keys
from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.sd15.unet_files import find_unet, level_unet, unet_lora_keys, unet_network
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL
from darkroom.engine.families.sdxl.latent_format import SdxlLatentFormat
from darkroom.engine.families.sdxl.size_labels import may_have_sizes, pooled_width
from darkroom.engine.families.sdxl_refiner.denoiser import NUM_NUMBERS, RefinerDenoiser
from darkroom.engine.families.text.clip_g import clip_g
from darkroom.engine.layers.unet_shapes import UnetTraits

CONTEXT_DIM = 1280
HEAD_CHANNELS = 64
LATENT_CHANNELS = 4
CLIP_G = clip_g(
    "conditioner.embedders.0.model.",
    partial(
        clip_text_keys,
        encoder_prefix="clip_g.transformer.",
        kohya=("lora_te_", "lora_prior_te_"),
        projection=("lora_prior_te_text_projection", "lora_te2_text_projection"),
    ),
)


def _is_ours(traits: UnetTraits) -> bool:
    """Return True for labels of the pooled output of the only text encoder and five numbers."""
    return may_have_sizes(traits) and pooled_width(traits, NUM_NUMBERS) == traits.context_dim


def detect(index: TensorIndex) -> Match | None:
    """Recognise the UNet by the widths of text and labels."""
    found = find_unet(index)
    if found is None or not _is_ours(found.traits) or found.traits.in_channels != LATENT_CHANNELS:
        return None
    return Match(2 if found.traits.context_dim == CONTEXT_DIM else 1, found.names)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the only one: the network predicts the noise."""
    return Parameterisation(EpsDiscrete)


unet_config = partial(level_unet, uses_linear=True, head_channels=HEAD_CHANNELS)

FAMILY = ModelFamily(
    name="sdxl_refiner",
    label="Stable Diffusion XL Refiner",
    lineage=("sdxl",),
    file_words=("sdxlrefiner", "stablediffusionxlrefiner"),
    detect=detect,
    parameterise=parameterise,
    denoiser=unet_network(head_channels=HEAD_CHANNELS),
    denoiser_type=RefinerDenoiser,
    text=(CLIP_G,),
    vae=AUTOENCODER_KL,
    latent_format=SdxlLatentFormat,
    denoiser_lora_keys=unet_lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames(
        "SDXL", ("stable_diffusion",), architectures={"": "stable-diffusion-xl-v1-refiner"}
    ),
    default=Defaults(
        width=1024, height=1024, steps=25, cfg=7.0, sampler_name="dpmpp_2m", scheduler="karras",
        tflop=7.4, attention=0.15, billions=2.26
    ),
    nodes=("CheckpointLoaderSimple", "CLIPTextEncodeSDXLRefiner", "EmptyLatentImage", "KSampler", "VAEDecode"),
    parameterisation=Parameterisation(EpsDiscrete),
    sizes={
        "full": unet_config(
            model_channels=384, context_dim=CONTEXT_DIM, depths=(0, 4, 4, 0), middle_depth=4,
            label_dim=CONTEXT_DIM + NUM_NUMBERS * 256,
        ),
        "small": unet_config(
            model_channels=64, context_dim=64, channel_mult=(1, 1, 2, 2), depths=(0, 1, 1, 0),
            blocks_per_level=1, label_dim=64 + NUM_NUMBERS * 256,
        ),
    },
)  # fmt: skip
