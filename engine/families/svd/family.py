"""Stable Video Diffusion (Blattmann et al. 2023, arXiv 2311.15127), and SV3D (Voleti et al. 2024, arXiv 2403.12008).

A video is drawn from an image, without a prompt.
"""

from __future__ import annotations

from functools import partial

from darkroom.engine.diffusion.model_sampling import EdmVContinuous
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
from darkroom.engine.families.sd15.vae_files import Sd15LatentFormat
from darkroom.engine.families.svd.denoisers import ANGLE_WIDTH, WIDTH, OrbitDenoiser, PoseDenoiser, VideoDenoiser
from darkroom.engine.families.svd.vae_files import AUTOENCODER_VIDEO
from darkroom.engine.layers.clip_vision import ClipVisionConfig
from darkroom.engine.layers.unet_shapes import UnetTraits

CONTEXT_DIM = 1024
HEAD_CHANNELS = 64
IN_CHANNELS = 8  # the noisy latent and the image's
LABEL_DIM = 3 * WIDTH
VARIANTS_BY_LABELS = {LABEL_DIM: "", WIDTH: "orbit", WIDTH + 2 * ANGLE_WIDTH: "pose"}
LEVELS = Parameterisation(EdmVContinuous, {"sigma_min": 0.002, "sigma_max": 700.0})


def _is_ours(traits: UnetTraits) -> bool:
    return traits.has_time_attention and traits.uses_linear and traits.in_channels == IN_CHANNELS


def detect(index: TensorIndex) -> Match | None:
    """Recognise the UNet by its attention along time and the width of its labels."""
    found = find_unet(index)
    if found is None or not _is_ours(found.traits) or found.traits.label_dim not in VARIANTS_BY_LABELS:
        return None
    specificity = 2 if found.traits.context_dim == CONTEXT_DIM else 1
    return Match(specificity, found.names, VARIANTS_BY_LABELS[found.traits.label_dim])


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the only one: any noise level, and v."""
    return LEVELS


unet_config = partial(
    level_unet, uses_linear=True, head_channels=HEAD_CHANNELS, in_channels=IN_CHANNELS, label_dim=LABEL_DIM,
    is_temporal=True,
)  # fmt: skip

DEFAULT = Defaults(
    width=1024, height=576, steps=20, cfg=2.5, scheduler="karras", tflop=72.9, billions=1.525,
    frames=14, frame_rate=6.0, frames_ratio=1,
)  # fmt: skip
FAMILY = ModelFamily(
    name="svd",
    label="Stable Video Diffusion",
    lineage=("sd15",),
    file_words=("svd", "stablevideodiffusion"),
    detect=detect,
    parameterise=parameterise,
    denoiser=unet_network(head_channels=HEAD_CHANNELS),
    denoiser_type=VideoDenoiser,
    text=(),
    vae=AUTOENCODER_VIDEO,
    latent_format=Sd15LatentFormat,
    denoiser_lora_keys=unet_lora_keys,
    variants={"": (), "orbit": (), "pose": ()},
    variant_types={"orbit": OrbitDenoiser, "pose": PoseDenoiser},
    memory_usage_factor=2.0,
    vision_prefix="conditioner.embedders.0.open_clip.model.visual.",
    comfyui=ComfyUiNames("SD15", architectures={"": "stable-video-diffusion-img2vid-v1"}),
    default=DEFAULT,
    nodes=("ImageOnlyCheckpointLoader", "SVD_img2vid_Conditioning", "VideoLinearCFGGuidance", "KSampler", "VAEDecode"),
    parameterisation=LEVELS,
    sizes={
        "full": unet_config(model_channels=320, context_dim=CONTEXT_DIM),
        "small": unet_config(model_channels=64, context_dim=64, channel_mult=(1, 1, 2, 2), blocks_per_level=1),
    },
    vision={
        "full": ClipVisionConfig(num_layers=32, width=1280, inner_width=5120, activation="gelu", projection_width=1024),
        "small": ClipVisionConfig(num_layers=32, width=64, inner_width=64, activation="gelu", projection_width=64),
    },
)
