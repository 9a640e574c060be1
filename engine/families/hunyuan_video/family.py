"""HunyuanVideo (Kong et al. 2024, arXiv 2412.03603): videos from text, or from text and an image; SkyReels V1."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
)
from darkroom.engine.families.hunyuan_video.denoiser import (
    IMAGE,
    KEPT,
    HunyuanVideoDenoiser,
    ImageVideoDenoiser,
    SkyreelsVideoDenoiser,
)
from darkroom.engine.families.hunyuan_video.text import CLIP_L, LLAMA, prompt_and_pooled
from darkroom.engine.families.hunyuan_video.transformer import HunyuanVideoConfig
from darkroom.engine.families.hunyuan_video.transformer_files import found_transformer, hunyuan_transformer, lora_keys
from darkroom.engine.families.hunyuan_video.vae_files import AUTOENCODER, HunyuanVideoLatentFormat
from darkroom.engine.families.transformer_files import always

CONTEXT_DIM, LABEL_DIM, CHANNELS = 4096, 768, 16
PATCH = (1, 2, 2)
VARIANTS = {CHANNELS: "", 2 * CHANNELS: "skyreels", 2 * CHANNELS + 1: "image"}  # by the channels of the first layer
TRAINERS = ("transformer.", "diffusion_model.", "lora_unet_")
FLOW = Parameterisation(flow_of, {"shift": 7.0})
DEFAULT = Defaults(
    width=848, height=480, steps=20, cfg=1.0, scheduler="simple",
    tflop=1100.0, attention=0.61, billions=12.821, video_latent="EmptyHunyuanLatentVideo",
    frames=73, frame_rate=24.0, frames_ratio=4,
)  # fmt: skip


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by the layers that refine its text, and by its labels."""
    found = found_transformer(index.shapes)
    if found is None or not found.has_labels:
        return None
    variant = VARIANTS.get(found.patch_shape[1])
    return None if variant is None else Match(2, found.names, variant)


FAMILY = ModelFamily(
    name="hunyuan_video",
    label="HunyuanVideo",
    lineage=("flux",),
    file_words=("hunyuanvideo",),
    other_file_words=("hunyuanvideo15",),
    detect=detect,
    parameterise=always(FLOW),
    denoiser=hunyuan_transformer(),
    denoiser_type=HunyuanVideoDenoiser,
    text=(CLIP_L, LLAMA),
    combine_text=prompt_and_pooled,
    vae=AUTOENCODER,
    latent_format=HunyuanVideoLatentFormat,
    denoiser_lora_keys=partial(lora_keys, prefixes=TRAINERS),
    variants={"": (), "image": (IMAGE, KEPT), "skyreels": (IMAGE,)},
    variant_types={"image": ImageVideoDenoiser, "skyreels": SkyreelsVideoDenoiser},
    comfyui=ComfyUiNames("HunyuanVideo", ("hunyuan_video",)),
    default=DEFAULT,
    variant_defaults={"image": replace(DEFAULT, video_latent=None, video_start="HunyuanImageToVideo")},
    nodes=(
        "UNETLoader", "DualCLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyHunyuanLatentVideo", "FluxGuidance",
        "KSampler", "VAEDecodeTiled",
    ),
    memory_usage_factor=1.8,
    parameterisation=FLOW,
    sizes={
        "full": HunyuanVideoConfig(
            width=3072, num_double=20, num_single=40, context_dim=CONTEXT_DIM, patch=PATCH, in_channels=CHANNELS,
            out_channels=CHANNELS, label_dim=LABEL_DIM, has_guidance=True,
        ),
        "small": HunyuanVideoConfig(
            width=128, num_double=2, num_single=2, context_dim=32, patch=PATCH, in_channels=CHANNELS,
            out_channels=CHANNELS, label_dim=64, has_guidance=True, num_refiners=1,
        ),
    },
)  # fmt: skip
