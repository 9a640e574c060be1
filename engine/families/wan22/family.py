"""Wan 2.2 5B (Wan Team 2025): videos from text and images, in cells of 16 pixels; Fun control and inpainting."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import plain_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
)
from darkroom.engine.families.text.t5 import umt5_xxl
from darkroom.engine.families.transformer_files import always
from darkroom.engine.families.wan.config import WanConfig
from darkroom.engine.families.wan.transformer_files import NETWORK, channels_of, find
from darkroom.engine.families.wan22.denoiser import FramesVideoDenoiser
from darkroom.engine.families.wan22.vae_files import WAN22_CHANNELS, WAN22_VAE, Wan22LatentFormat

FLOW = Parameterisation(flow_of, {"shift": 8.0})


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by its last layer and the channels that leave it."""
    match = find(index)
    if match is None or channels_of(index, match)[1] != WAN22_CHANNELS:
        return None
    variant = "" if channels_of(index, match)[0] == WAN22_CHANNELS else "control"
    return Match(match.specificity, match.names, variant)


FAMILY = ModelFamily(
    name="wan22",
    label="Wan 2.2 5B",
    lineage=("wan",),
    file_words=("wan22ti2v5b", "wan22fun5b", "ti2v5b"),
    detect=detect,
    parameterise=always(FLOW),
    denoiser=NETWORK,
    denoiser_type=FramesVideoDenoiser,
    text=(umt5_xxl(),),
    vae=WAN22_VAE,
    latent_format=Wan22LatentFormat,
    denoiser_lora_keys=plain_keys,
    variants={"": (), "control": ()},
    comfyui=ComfyUiNames("Wan22", ("wan",)),
    default=Defaults(
        width=1280, height=704, steps=20, cfg=5.0, sampler_name="uni_pc", scheduler="simple",
        tflop=514.0, attention=0.53, billions=5.0,
        video_latent="Wan22ImageToVideoLatent", video_start="Wan22ImageToVideoLatent",
        frames=121, frame_rate=24.0, frames_ratio=4,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "ModelSamplingSD3", "CLIPTextEncode", "Wan22ImageToVideoLatent",
        "KSampler", "VAEDecode",
    ),
    memory_usage_factor=1.4,  # its width / 2222
    parameterisation=FLOW,
    sizes={
        "full": WanConfig(
            width=3072, num_blocks=30, inner_width=14336, in_channels=WAN22_CHANNELS, out_channels=WAN22_CHANNELS
        ),
        "small": WanConfig(
            width=128, num_blocks=3, inner_width=256, in_channels=WAN22_CHANNELS, out_channels=WAN22_CHANNELS
        ),
    },
)  # fmt: skip
