"""The refiner of HunyuanImage 2.1 (Tencent Hunyuan 2025), which redraws an image in latents of smaller cells."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    Parameterisation,
    TensorIndex,
)
from darkroom.engine.families.hunyuan_image.family import FAMILY as HUNYUAN_IMAGE
from darkroom.engine.families.hunyuan_image.text import CONTEXT_DIM
from darkroom.engine.families.hunyuan_image_refiner.denoiser import RefinerDenoiser
from darkroom.engine.families.hunyuan_image_refiner.vae_files import AUTOENCODER, RefinerLatentFormat
from darkroom.engine.families.hunyuan_video.transformer import HunyuanVideoConfig
from darkroom.engine.families.hunyuan_video.transformer_files import found_transformer
from darkroom.engine.families.transformer_files import always

PATCH = (1, 1, 1)
VIDEO_MARK = "cond_type_embedding.weight"
FLOW = Parameterisation(flow_of, {"shift": 4.0})


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by the layers that refine its text and by patches of one cell.

    HunyuanVideo's has labels, that of HunyuanVideo 1.5 kinds of tokens.
    """
    found = found_transformer(index.shapes)
    if found is None or found.has_labels or found.patch_shape[2:] != PATCH or VIDEO_MARK in found.names:
        return None
    return Match(2, found.names)


# Texts, LoRAs and the transformer's layers are those of HunyuanImage.
FAMILY = replace(
    HUNYUAN_IMAGE,
    name="hunyuan_image_refiner",
    label="HunyuanImage 2.1 Refiner",
    lineage=("hunyuan_image",),
    file_words=("hunyuanimagerefiner", "hunyuanimage21refiner"),
    other_file_words=(),
    detect=detect,
    parameterise=always(FLOW),
    denoiser_type=RefinerDenoiser,
    vae=AUTOENCODER,
    latent_format=RefinerLatentFormat,
    comfyui=ComfyUiNames("HunyuanImage21Refiner", ("hunyuan_image",)),
    default=Defaults(
        width=2048, height=2048, steps=4, cfg=1.0, scheduler="simple",
        tflop=487.0, attention=0.44, billions=15.039,
    ),
    nodes=(
        "UNETLoader", "DualCLIPLoader", "VAELoader", "CLIPTextEncode", "VAEEncode", "HunyuanRefinerLatent", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=1.8,
    parameterisation=FLOW,
    sizes={
        "full": HunyuanVideoConfig(
            width=3328, num_double=20, num_single=40, context_dim=CONTEXT_DIM, patch=PATCH, in_channels=128,
            has_guidance=True, has_end_time=True,
        ),
        "small": HunyuanVideoConfig(
            width=128, num_double=2, num_single=2, context_dim=32, patch=PATCH, in_channels=128, num_refiners=1,
        ),
    },
)  # fmt: skip
