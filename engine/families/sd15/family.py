"""Stable Diffusion 1 (Rombach et al. 2022, arXiv 2112.10752).

It includes the inpainting, InstructPix2Pix and v-prediction variants.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.diffusion.model_sampling import EpsDiscrete, VDiscrete
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.sd15.denoiser import InstructedDenoiser
from darkroom.engine.families.sd15.text import CLIP_L
from darkroom.engine.families.sd15.unet_files import (
    MERGED_BLOCKS,
    find_unet,
    level_unet,
    unet_controls,
    unet_lora_keys,
    unet_network,
)
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL, Sd15LatentFormat
from darkroom.engine.layers.unet_shapes import UnetTraits

CONTEXT_DIM = 768
OTHERS_CONTEXT_DIMS = (1024, 1280, 2048)  # of text encoders that no network of this family reads
PROJECTED_TOKENS = "cc_projection.weight"  # beside a network that takes other tokens than a prompt's
VARIANTS_BY_CHANNELS = {4: "", 8: "edit", 9: "inpaint"}
DEFAULT = Defaults(width=512, height=512, steps=20, cfg=7.5, tflop=0.804, attention=0.16, billions=0.86)


def _is_ours(traits: UnetTraits) -> bool:
    return (
        traits.context_dim not in (0, *OTHERS_CONTEXT_DIMS)
        and not traits.uses_linear
        and not traits.label_dim
        and not traits.has_time_attention
    )


def detect(index: TensorIndex) -> Match | None:
    """Recognise the UNet by its text width, projections by convolution and the absence of label embeddings."""
    found = find_unet(index)
    if (
        PROJECTED_TOKENS in index.shapes
        or found is None
        or not _is_ours(found.traits)
        or found.traits.in_channels not in VARIANTS_BY_CHANNELS
    ):
        return None
    specificity = 2 if found.traits.context_dim == CONTEXT_DIM else 1  # narrower ones are random or of a demonstration
    return Match(specificity, found.names, VARIANTS_BY_CHANNELS[found.traits.in_channels])


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Detect v-prediction and a zero terminal signal-to-noise ratio by the marks in such files."""
    prediction = file.metadata.get("modelspec.prediction_type", "").lower()
    kind = VDiscrete if "v_pred" in file.shapes or prediction.startswith("v") else EpsDiscrete
    return Parameterisation(kind, {"zsnr": "ztsnr" in file.shapes})


unet_config = partial(level_unet, model_channels=320, context_dim=CONTEXT_DIM)

FAMILY = ModelFamily(
    name="sd15",
    label="Stable Diffusion 1",
    file_words=("sd15", "sdv15", "sd14", "v15pruned", "stablediffusionv15", "stablediffusion15"),
    detect=detect,
    parameterise=parameterise,
    denoiser=unet_network(),
    text=(CLIP_L,),
    vae=AUTOENCODER_KL,
    latent_format=Sd15LatentFormat,
    denoiser_lora_keys=unet_lora_keys,
    variants={"": (), "inpaint": ("mask", "masked_image"), "edit": ("edited_image",)},
    variant_types={"edit": InstructedDenoiser},
    controls=unet_controls(_is_ours, token_width=CONTEXT_DIM),
    comfyui=ComfyUiNames("SD15", ("stable_diffusion",), {"ModelMergeSD1": MERGED_BLOCKS}),
    takes_hypernetworks=True,
    default=DEFAULT,
    variant_defaults={"inpaint": replace(DEFAULT, inpaint="conditioning")},
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    sizes={
        "full": unet_config(),
        "small": unet_config(model_channels=64, context_dim=64, channel_mult=(1, 1, 2, 2), blocks_per_level=1),
    },
    parameterisation=Parameterisation(EpsDiscrete),
    is_default=True,
)
