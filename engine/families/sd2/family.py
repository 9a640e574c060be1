"""Stable Diffusion 2.0 and 2.1 (Rombach et al. 2022, arXiv 2112.10752): eps at 512 pixels, v at 768, and inpainting.

Networks made of it: guided by depth, by images (unCLIP), the fourfold upscaler, Lotus (arXiv 2409.18124), which draws
depth or normals, and SDPose, which is Lotus's network and finds the points of people.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.diffusion.model_sampling import EpsDiscrete, VDiscrete
from darkroom.engine.diffusion.model_sampling_variants import DiscreteImageToImage
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    Shapes,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.sd2.denoisers import (
    UPSCALE_SCHEDULE,
    DepthDenoiser,
    LotusDenoiser,
    UnclipDenoiser,
    UpscaleDenoiser,
)
from darkroom.engine.families.sd2.heatmap_head import SIGNATURE, build_unet, with_head
from darkroom.engine.families.sd2.text import CLIP_H
from darkroom.engine.families.sd15.unet_files import (
    MERGED_BLOCKS,
    find_unet,
    level_unet,
    unet_controls,
    unet_lora_keys,
    unet_network,
)
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL, Sd15LatentFormat
from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.layers.unet_shapes import UnetTraits
from darkroom.engine.layers.unet_shapes import unet_config as config_of_shapes

CONTEXT_DIM = 1024
HEAD_CHANNELS = 64
OTHERS_CONTEXT_DIMS = (768, 1280, 2048)  # of text encoders that no network of this family reads
VARIANTS_BY_CHANNELS = {4: "", 5: "depth", 9: "inpaint"}
DEFAULT = Defaults(width=768, height=768, steps=20, cfg=7.5, tflop=2.18, attention=0.28, billions=0.866)
UPSCALE_CHANNELS = 7  # the noisy latent and an image
LOTUS, POSE = "lotus", "pose"  # variants
LOTUS_LABEL_DIM = 4
# Networks trained to predict v are known by how far the biases of this norm are spread: ComfyUI's rule.
SPREAD_OF = "output_blocks.11.1.transformer_blocks.0.norm1.bias"
SPREAD_OF_V = 0.09


def _is_ours(traits: UnetTraits) -> bool:
    return (
        traits.context_dim not in (0, *OTHERS_CONTEXT_DIMS)
        and traits.uses_linear
        and (traits.has_first_attention or traits.num_labels > 0)  # the upscaler has none there
        and not traits.has_time_attention
    )


def _takes_no_labels(traits: UnetTraits) -> bool:
    return _is_ours(traits) and not traits.label_dim


def _variant(traits: UnetTraits) -> str | None:
    """Return the form of the network by its input channels and labels, None for one that is not known."""
    if traits.num_labels:
        return "upscale" if traits.in_channels == UPSCALE_CHANNELS else None
    variant = VARIANTS_BY_CHANNELS.get(traits.in_channels)
    if not traits.label_dim:
        return variant
    labelled = LOTUS if traits.label_dim == LOTUS_LABEL_DIM else "unclip"
    return labelled if variant == "" else None


def detect(index: TensorIndex) -> Match | None:
    """Recognise the UNet by its text width, linear projections, and a transformer on its first level."""
    found = find_unet(index)
    if found is None or not _is_ours(found.traits):
        return None
    variant = _variant(found.traits)
    if variant is None:
        return None
    if variant == LOTUS and SIGNATURE in found.names:
        variant = POSE
    return Match(2 if found.traits.context_dim == CONTEXT_DIM else 1, found.names, variant)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Detect v-prediction by the mark that ComfyUI saves, else by the spread of biases.

    Inpainting and depth predict the noise, the upscaler v, and Lotus the image.
    """
    if match.variant in (LOTUS, POSE):
        return Parameterisation(DiscreteImageToImage)
    if match.variant == "upscale":
        return Parameterisation(VDiscrete, UPSCALE_SCHEDULE, latent_format=UpscaleLatentFormat)
    predicts_v = "v_pred" in file.shapes
    name = match.names.get(SPREAD_OF)
    if not predicts_v and match.variant in ("", "unclip") and isinstance(name, str):
        predicts_v = bool(torch.std(file.tensor(name), unbiased=False) > SPREAD_OF_V)
    return Parameterisation(VDiscrete if predicts_v else EpsDiscrete, {"zsnr": "ztsnr" in file.shapes})


def _configure(shapes: Shapes) -> UnetConfig:
    """Return the layers; the upscaler has 8 attention heads at every width, as in ComfyUI."""
    config = config_of_shapes(shapes, head_channels=HEAD_CHANNELS)
    return with_head(replace(config, head_channels=None) if config.num_labels else config, shapes)


class UpscaleLatentFormat(LatentFormat):
    """Latent format of the upscaler: fourfold, with a scale and colours of its own, which are public knowledge."""

    scale_factor = 0.08333
    latent_rgb_factors = (
        (-0.2340, -0.3863, -0.3257),
        (0.0994, 0.0885, -0.0908),
        (-0.2833, -0.2349, -0.3741),
        (0.2523, -0.0055, -0.1651),
    )


unet_config = partial(
    level_unet, model_channels=320, context_dim=CONTEXT_DIM, uses_linear=True, head_channels=HEAD_CHANNELS
)

FAMILY = ModelFamily(
    name="sd2",
    label="Stable Diffusion 2",
    lineage=("sd15",),
    file_words=("sd21", "sd20", "v21768", "v21512", "stablediffusion2"),
    detect=detect,
    parameterise=parameterise,
    denoiser=replace(unet_network(), configure=_configure, build=build_unet),
    text=(CLIP_H,),
    vae=AUTOENCODER_KL,
    latent_format=Sd15LatentFormat,
    denoiser_lora_keys=unet_lora_keys,
    variants={
        "": (), "inpaint": ("mask", "masked_image"), "depth": (), "unclip": (), LOTUS: (), POSE: (),
        "upscale": (),
    },
    variant_types={
        "depth": DepthDenoiser, "unclip": UnclipDenoiser, LOTUS: LotusDenoiser, POSE: LotusDenoiser,
        "upscale": UpscaleDenoiser,
    },
    vision_prefix="embedder.model.visual.",
    controls=unet_controls(_takes_no_labels, token_width=CONTEXT_DIM, head_channels=HEAD_CHANNELS),
    comfyui=ComfyUiNames("SD15", ("stable_diffusion",), {"ModelMergeSD2": MERGED_BLOCKS}),
    takes_hypernetworks=True,
    default=DEFAULT,
    variant_defaults={"inpaint": replace(DEFAULT, width=512, height=512, inpaint="conditioning")},
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    parameterisation=Parameterisation(VDiscrete),
    sizes={
        "full": unet_config(),
        "small": unet_config(model_channels=64, context_dim=64, channel_mult=(1, 1, 2, 2), blocks_per_level=1),
    },
)  # fmt: skip
