"""HunyuanVideo 1.5 (Tencent Hunyuan 2025, arXiv 2511.18870): videos from text and images, and their super-resolution.

Prompts are read as HunyuanImage 2.1's are, and its refiner's VAE is also this family's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.hunyuan_image.text import CONTEXT_DIM, GLYPH, GLYPH_WIDTH, prompt_and_glyphs
from darkroom.engine.families.hunyuan_image_refiner.vae_files import AUTOENCODER, SCALE, VAE_CHANNELS
from darkroom.engine.families.hunyuan_video.transformer import HunyuanVideoConfig
from darkroom.engine.families.hunyuan_video.transformer_files import found_transformer, hunyuan_transformer, lora_keys
from darkroom.engine.families.hunyuan_video15.denoiser import HunyuanVideo15Denoiser, SuperResolutionDenoiser
from darkroom.engine.families.hunyuan_video15.text import PROMPT
from darkroom.engine.families.hunyuan_video15.transformer import (
    IMAGES,
    KINDS,
    HunyuanVideo15Transformer,
    hunyuan_video15_config,
)
from darkroom.engine.families.hunyuan_video15.upsampler_files import UPSAMPLERS

IMAGE_DIM = 1152  # of SigLIP's tokens
GLYPH_INNER = 2048
IN_CHANNELS = 2 * VAE_CHANNELS + 1  # the noisy latent, known frames and where they are
SR = "super_resolution"
SR_CHANNELS = 3 * VAE_CHANNELS + 2
VARIANTS = {IN_CHANNELS: "", SR_CHANNELS: SR}  # by the channels of the first layer
FLOW = Parameterisation(flow_of, {"shift": 7.0})
SR_FLOW = Parameterisation(flow_of, {"shift": 2.0})
TRAINERS = ("transformer.", "diffusion_model.", "lora_unet_")


class HunyuanVideo15LatentFormat(LatentFormat):
    """Latents [B, 32, f, h, w] of cells of 16 pixels. The table of colours is public knowledge of the community."""

    latent_channels = VAE_CHANNELS
    latent_dimensions = 3
    temporal_downscale_ratio = 4
    spacial_downscale_ratio = 16
    scale_factor = SCALE
    latent_rgb_factors = (
        (0.0568, -0.0521, -0.0131), (0.0014, 0.0735, 0.0326), (0.0186, 0.0531, -0.0138), (-0.0031, 0.0051, 0.0288),
        (0.0110, 0.0556, 0.0432), (-0.0041, -0.0023, -0.0485), (0.0530, 0.0413, 0.0253), (0.0283, 0.0251, 0.0339),
        (0.0277, -0.0372, -0.0093), (0.0393, 0.0944, 0.1131), (0.0020, 0.0251, 0.0037), (-0.0017, 0.0012, 0.0234),
        (0.0468, 0.0436, 0.0203), (0.0354, 0.0439, -0.0233), (0.0090, 0.0123, 0.0346), (0.0382, 0.0029, 0.0217),
        (0.0261, -0.0300, 0.0030), (-0.0088, -0.0220, -0.0283), (-0.0272, -0.0121, -0.0363), (-0.0664, -0.0622, 0.0144),
        (0.0414, 0.0479, 0.0529), (0.0355, 0.0612, -0.0247), (0.0147, 0.0264, 0.0174), (0.0438, 0.0038, 0.0542),
        (0.0431, -0.0573, -0.0033), (-0.0162, -0.0211, -0.0406), (-0.0487, -0.0295, -0.0393), (0.0005, -0.0109, 0.0253),
        (0.0296, 0.0591, 0.0353), (0.0119, 0.0181, -0.0306), (-0.0085, -0.0362, 0.0229), (0.0005, -0.0106, 0.0242),
    )  # fmt: skip
    latent_rgb_factors_bias = (0.0456, -0.0202, -0.0644)


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by the layers that refine its text and those that read an image's tokens."""
    found = found_transformer(index.shapes)
    if found is None or found.has_labels or IMAGES not in found.names:
        return None
    variant = VARIANTS.get(found.patch_shape[1])
    return None if variant is None else Match(3, found.names, variant)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the shift that the network, or that of super-resolution, was trained with."""
    return SR_FLOW if match.variant == SR else FLOW


DENOISER = replace(
    hunyuan_transformer(hunyuan_video15_config, HunyuanVideo15Transformer),
    float32_ends=(KINDS,),  # as in ComfyUI
)
DEFAULT = Defaults(
    width=1280, height=720, steps=20, cfg=6.0, scheduler="simple",
    tflop=6100.0, attention=0.9, billions=8.327, video_latent="EmptyHunyuanVideo15Latent",
    video_start="HunyuanVideo15ImageToVideo", frames=121, frame_rate=24.0, frames_ratio=4,
)  # fmt: skip
FULL = HunyuanVideoConfig(
    width=2048, num_double=54, num_single=0, context_dim=CONTEXT_DIM, patch=(1, 1, 1), in_channels=IN_CHANNELS,
    out_channels=VAE_CHANNELS, glyph_width=GLYPH_WIDTH, glyph_inner=GLYPH_INNER, sums_times=True, image_dim=IMAGE_DIM,
    has_kinds=True,
)  # fmt: skip

FAMILY = ModelFamily(
    name="hunyuan_video15",
    label="HunyuanVideo 1.5",
    lineage=("hunyuan_image_refiner",),
    file_words=("hunyuanvideo15",),
    detect=detect,
    parameterise=parameterise,
    denoiser=DENOISER,
    denoiser_type=HunyuanVideo15Denoiser,
    text=(PROMPT, GLYPH),
    combine_text=prompt_and_glyphs,
    vae=AUTOENCODER,
    latent_upscalers=UPSAMPLERS,
    latent_format=HunyuanVideo15LatentFormat,
    denoiser_lora_keys=partial(lora_keys, prefixes=TRAINERS),
    variants={"": (), SR: ()},
    variant_types={SR: SuperResolutionDenoiser},
    comfyui=ComfyUiNames("HunyuanVideo15", ("hunyuan_video_15",)),
    default=DEFAULT,
    variant_defaults={SR: replace(DEFAULT, steps=8, cfg=1.0, video_latent=None, video_start=None)},
    nodes=(
        "UNETLoader", "DualCLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyHunyuanVideo15Latent", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=4.0,
    parameterisation=FLOW,
    sizes={
        "full": FULL,
        "small": replace(
            FULL, width=128, num_double=2, context_dim=32, glyph_width=64, glyph_inner=32, image_dim=32,
            num_refiners=1,
        ),
    },
)  # fmt: skip
