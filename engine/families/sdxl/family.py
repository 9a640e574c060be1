"""Stable Diffusion XL (Podell et al. 2023, arXiv 2307.01952).

It includes networks distilled to fewer layers (SSD-1B and Segmind Vega: Gupta et al. 2024, arXiv 2401.02677; KOALA: Lee
et al. 2023, arXiv 2312.04005) or to fewer steps (Turbo, Lightning, LCM, Hyper), inpainting, InstructPix2Pix,
v-prediction with or without a zero terminal signal-to-noise ratio, CosXL, and Playground v2.5 (Li et al. 2024, arXiv
2402.17245).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.diffusion.latent_format import PlaygroundLatentFormat
from darkroom.engine.diffusion.model_sampling import EdmContinuous, EdmVContinuous, EpsDiscrete, VDiscrete
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
from darkroom.engine.families.sd15.unet_files import find_unet, level_unet, unet_controls, unet_lora_keys, unet_network
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL
from darkroom.engine.families.sdxl.denoiser import NUM_NUMBERS, InstructedDenoiser, LargeImageDenoiser
from darkroom.engine.families.sdxl.latent_format import SdxlLatentFormat
from darkroom.engine.families.sdxl.size_labels import may_have_sizes, pooled_width
from darkroom.engine.families.sdxl.supir_files import SUPIR
from darkroom.engine.families.sdxl.text import CLIP_G, CLIP_L, side_by_side
from darkroom.engine.layers.unet_shapes import UnetTraits

CONTEXT_DIM, POOLED_WIDTH = 2048, 1280
LABEL_DIM = POOLED_WIDTH + NUM_NUMBERS * 256
HEAD_CHANNELS = 64
VARIANTS_BY_CHANNELS = {4: "", 8: "edit", 9: "inpaint"}
DEFAULT = Defaults(
    width=1024,
    height=1024,
    steps=25,
    cfg=7.0,
    sampler_name="dpmpp_2m",
    scheduler="karras",
    tflop=6.96,
    attention=0.095,
    billions=2.567,
)
NUM_MERGED_BLOCKS = 9  # on either side
# Names of tensors by which files of other parameterisations than the first one's are known.
PLAYGROUND_MARKS = ("edm_mean", "edm_std")
HIGHEST_SIGMA, LOWEST_SIGMA = "edm_vpred.sigma_max", "edm_vpred.sigma_min"
MERGED_BLOCKS = (
    "time_embed.", "label_emb.", *(f"input_blocks.{index}" for index in range(NUM_MERGED_BLOCKS)),
    *(f"middle_block.{index}" for index in range(3)), *(f"output_blocks.{index}" for index in range(NUM_MERGED_BLOCKS)),
    "out.",
)  # fmt: skip


def _is_ours(traits: UnetTraits) -> bool:
    """Return True for labels of the pooled output of one of two text encoders and six numbers."""
    is_of_one_encoder = pooled_width(traits, NUM_NUMBERS - 1) == traits.context_dim
    is_narrower = 0 < pooled_width(traits, NUM_NUMBERS) < traits.context_dim
    return may_have_sizes(traits) and is_narrower and not is_of_one_encoder


def _is_our_control(traits: UnetTraits) -> bool:
    """Return True for half of such a UNet; that of small ControlNets has no transformers, so labels tell it alone."""
    return _is_ours(traits) or (traits.context_dim == 0 and traits.label_dim == LABEL_DIM)


def _is_playground(shapes: Shapes) -> bool:
    return all(mark in shapes for mark in PLAYGROUND_MARKS)


def detect(index: TensorIndex) -> Match | None:
    """Recognise the UNet by the widths of text and labels, whatever its depth."""
    found = find_unet(index)
    if found is None or not _is_ours(found.traits) or found.traits.in_channels not in VARIANTS_BY_CHANNELS:
        return None
    is_full = (found.traits.context_dim, found.traits.label_dim) == (CONTEXT_DIM, LABEL_DIM)
    variant = VARIANTS_BY_CHANNELS[found.traits.in_channels]
    if variant == "edit" and HIGHEST_SIGMA in index.shapes and not _is_playground(index.shapes):
        variant = "edit_scaled"  # CosXL
    return Match(2 if is_full else 1, found.names, variant)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Detect how the network's output is read by the marks in the file: ComfyUI's rule."""
    shapes = file.shapes
    if _is_playground(shapes):
        settings = {"sigma_data": 0.5, "sigma_min": 0.002, "sigma_max": 80.0}
        return Parameterisation(EdmContinuous, settings, PlaygroundLatentFormat)
    if HIGHEST_SIGMA in shapes:
        names = {"sigma_max": HIGHEST_SIGMA, "sigma_min": LOWEST_SIGMA}
        return Parameterisation(
            EdmVContinuous, {key: float(file.tensor(name).item()) for key, name in names.items() if name in shapes}
        )
    if "v_pred" in shapes:
        return Parameterisation(VDiscrete, {"zsnr": "ztsnr" in shapes})
    return Parameterisation(EpsDiscrete)


unet_config = partial(level_unet, uses_linear=True, head_channels=HEAD_CHANNELS)

FAMILY = ModelFamily(
    name="sdxl",
    label="Stable Diffusion XL",
    lineage=("sd2",),
    file_words=("sdxl", "stablediffusionxl"),
    detect=detect,
    parameterise=parameterise,
    denoiser=unet_network(head_channels=HEAD_CHANNELS),
    denoiser_type=LargeImageDenoiser,
    text=(CLIP_L, CLIP_G),
    combine_text=side_by_side,
    vae=AUTOENCODER_KL,
    latent_format=SdxlLatentFormat,
    denoiser_lora_keys=unet_lora_keys,
    variants={
        "": (), "inpaint": ("mask", "masked_image"), "edit": ("edited_image",), "edit_scaled": ("scaled_edited_image",),
    },
    variant_types={"edit": InstructedDenoiser, "edit_scaled": InstructedDenoiser},
    controls=unet_controls(_is_our_control, token_width=CONTEXT_DIM, head_channels=HEAD_CHANNELS),
    model_patches=(SUPIR,),
    comfyui=ComfyUiNames(
        "SDXL", ("sdxl",), {"ModelMergeSDXL": MERGED_BLOCKS},
        {"": "stable-diffusion-xl-v1-base", **dict.fromkeys(("edit", "edit_scaled"), "stable-diffusion-xl-v1-edit")},
    ),
    default=DEFAULT,
    variant_defaults={"inpaint": replace(DEFAULT, inpaint="conditioning")},
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=0.8,
    parameterisation=Parameterisation(EpsDiscrete),
    sizes={
        "full": unet_config(
            model_channels=320, context_dim=CONTEXT_DIM, channel_mult=(1, 2, 4), depths=(0, 2, 10), middle_depth=10,
            label_dim=LABEL_DIM,
        ),
        "small": unet_config(
            model_channels=64, context_dim=128, channel_mult=(1, 1, 2), depths=(0, 1, 2), middle_depth=2,
            blocks_per_level=1, label_dim=64 + NUM_NUMBERS * 256,
        ),
    },
)  # fmt: skip
