"""Stable Diffusion 2.0 and 2.1 (Rombach et al. 2022, arXiv 2112.10752): eps at 512 pixels, v at 768, and inpainting.

UnCLIP and upscaling networks, which take labels, are not among them.
"""

from __future__ import annotations

from functools import partial

import torch

from engine.architectures.clip_text import ClipTextConfig
from engine.architectures.latent_unet_shapes import UnetTraits
from engine.diffusion.model_sampling import EpsDiscrete, VDiscrete
from engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    Scale,
    TensorIndex,
    TensorReader,
)
from engine.families.parts.autoencoder_kl import AUTOENCODER_KL, FULL, SMALL, KlLatentFormat
from engine.families.parts.latent_unet import (
    MERGED_BLOCKS,
    find_unet,
    level_unet,
    unet_controls,
    unet_lora_keys,
    unet_network,
)
from engine.families.sd2.text_encoder import CLIP_H

CONTEXT_DIM = 1024
HEAD_CHANNELS = 64
OTHERS_CONTEXT_DIMS = (768, 1280, 2048)  # of text encoders that no network of this family reads
VARIANTS_BY_CHANNELS = {4: "", 9: "inpaint"}
# Networks trained to predict v are known by how far the biases of this norm are spread: ComfyUI's rule.
SPREAD_OF = "output_blocks.11.1.transformer_blocks.0.norm1.bias"
SPREAD_OF_V = 0.09


def _is_ours(traits: UnetTraits) -> bool:
    return (
        traits.context_dim not in (0, *OTHERS_CONTEXT_DIMS)
        and traits.uses_linear
        and not traits.label_dim
        and not traits.has_time_attention
    )


def detect(index: TensorIndex) -> Match | None:
    """Recognise the UNet by its text width, linear projections and the absence of label embeddings."""
    found = find_unet(index)
    if found is None or not _is_ours(found.traits) or found.traits.in_channels not in VARIANTS_BY_CHANNELS:
        return None
    specificity = 2 if found.traits.context_dim == CONTEXT_DIM else 1
    return Match(specificity, found.names, VARIANTS_BY_CHANNELS[found.traits.in_channels])


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Detect v-prediction by the mark that ComfyUI saves, else by the spread of biases.

    Inpainting predicts the noise.
    """
    predicts_v = "v_pred" in file.shapes
    name = match.names.get(SPREAD_OF)
    if not predicts_v and not match.variant and isinstance(name, str):
        predicts_v = bool(torch.std(file.tensor(name), unbiased=False) > SPREAD_OF_V)
    return Parameterisation(VDiscrete if predicts_v else EpsDiscrete, {"zsnr": "ztsnr" in file.shapes})


unet_config = partial(
    level_unet, model_channels=320, context_dim=CONTEXT_DIM, uses_linear=True, head_channels=HEAD_CHANNELS
)

FAMILY = ModelFamily(
    name="sd2",
    label="Stable Diffusion 2",
    detect=detect,
    parameterise=parameterise,
    denoiser=unet_network(head_channels=HEAD_CHANNELS),
    text=(CLIP_H,),
    vae=AUTOENCODER_KL,
    latent_format=KlLatentFormat,
    denoiser_lora_keys=unet_lora_keys,
    variants={"": (), "inpaint": ("mask", "masked_image")},
    controls=unet_controls(_is_ours, token_width=CONTEXT_DIM, head_channels=HEAD_CHANNELS),
    comfyui=ComfyUiNames("SD15", ("stable_diffusion",), {"ModelMergeSD2": MERGED_BLOCKS}),
    takes_hypernetworks=True,
    default=Defaults(width=768, height=768, steps=20, cfg=7.5, cost=2.6),
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    parameterisation=Parameterisation(VDiscrete),
    scales={
        "full": Scale(
            unet_config(),
            {"h": ClipTextConfig(num_layers=24, width=1024, heads=16, inner_width=4096, activation="gelu")},
            FULL,
        ),
        "small": Scale(
            unet_config(model_channels=64, context_dim=64, channel_mult=(1, 1, 2, 2), blocks_per_level=1),
            {"h": ClipTextConfig(num_layers=24, width=64, heads=1, inner_width=128, activation="gelu")},
            SMALL,
        ),
    },
)
