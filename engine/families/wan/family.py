"""Wan 2.1 and 2.2 (Wan Team 2025, arXiv 2503.20314): videos from text, images, controls, cameras, audio and poses.

Networks of 16 channels; that of 48, Wan 2.2 5B, is a family of its own.
"""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.adapters.lora_names import plain_keys
from darkroom.engine.diffusion.model_sampling_variants import DiscreteImageToImageFlow, flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.text.t5 import umt5_xxl
from darkroom.engine.families.wan.animate import FACES
from darkroom.engine.families.wan.animate2_denoiser import FollowingVideoDenoiser
from darkroom.engine.families.wan.config import WanConfig
from darkroom.engine.families.wan.dancer import KEY_FRAMES
from darkroom.engine.families.wan.dancer_denoiser import DancingVideoDenoiser
from darkroom.engine.families.wan.denoiser import (
    AnimatedVideoDenoiser,
    AudioVideoDenoiser,
    CameraVideoDenoiser,
    ControlledVideoDenoiser,
    ImageVideoDenoiser,
    SpeechVideoDenoiser,
)
from darkroom.engine.families.wan.humo import SPEECH
from darkroom.engine.families.wan.infinite_talk import INFINITE_TALK
from darkroom.engine.families.wan.s2v import AUDIO
from darkroom.engine.families.wan.scail import COLOURS, POSES
from darkroom.engine.families.wan.scail_denoiser import ColouredVideoDenoiser, PosedVideoDenoiser
from darkroom.engine.families.wan.transformer_files import (
    ANIMATE2,
    CAUSAL,
    FLOW_RVS,
    NETWORK,
    channels_of,
    described_variant,
    find,
)
from darkroom.engine.families.wan.uni3c import UNI3C
from darkroom.engine.families.wan.vace import CAMERA, CONTROLS
from darkroom.engine.families.wan.vae_files import LATENT_CHANNELS, WAN_VAE, WanLatentFormat
from darkroom.engine.families.wan.video_denoiser import FrameByFrameDenoiser, SegmentedVideoDenoiser, VideoDenoiser

DEFAULT = Defaults(
    width=832, height=480, steps=30, cfg=6.0, sampler_name="uni_pc", scheduler="simple",
    tflop=281.0, attention=0.7, billions=1.419,
    video_latent="EmptyHunyuanLatentVideo", frames=81, frame_rate=16.0, frames_ratio=4,
)  # fmt: skip
FLOW = Parameterisation(flow_of, {"shift": 8.0})
LESS_SHIFTED = Parameterisation(flow_of, {"shift": 5.0})
PARAMETERISATIONS = {
    ANIMATE2: LESS_SHIFTED, CAUSAL: LESS_SHIFTED, FLOW_RVS: Parameterisation(DiscreteImageToImageFlow),
}  # fmt: skip
MERGED_BLOCKS = (
    "patch_embedding.", "time_embedding.", "time_projection.", "text_embedding.", "img_emb.",
    *(f"blocks.{index}." for index in range(40)), "head.",
)  # fmt: skip
# Variants by the layers that only they have, in ComfyUI's order, then by the channels that enter.
BY_LAYER = {
    CONTROLS: "vace", CAMERA: "camera", AUDIO: "sound", SPEECH: "speech", FACES: "animate", COLOURS: "scail2",
    POSES: "scail", KEY_FRAMES: "dancer",
}  # fmt: skip
BY_CHANNELS = {LATENT_CHANNELS: "", 2 * LATENT_CHANNELS + 4: "image"}


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by its last layer and the channels that leave it."""
    match = find(index)
    if match is None or channels_of(index, match)[1] != LATENT_CHANNELS:
        return None
    by_layer = next((name for layer, name in BY_LAYER.items() if layer in match.names), None)
    by_channels = BY_CHANNELS.get(channels_of(index, match)[0], "control")
    by_tensors = by_channels if by_layer is None else by_layer
    described = described_variant(index.metadata)
    if described == CAUSAL and by_tensors:
        described = ""
    return Match(match.specificity, match.names, described or by_tensors)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the form of the network's output, which its variant tells."""
    return PARAMETERISATIONS.get(match.variant, FLOW)


FAMILY = ModelFamily(
    name="wan",
    label="Wan",
    file_words=("wan21", "wan2", "wan22", "wanvace"),
    other_file_words=("wan25", "wan26", "wan27"),
    detect=detect,
    parameterise=parameterise,
    denoiser=NETWORK,
    denoiser_type=VideoDenoiser,
    text=(umt5_xxl(),),
    vae=WAN_VAE,
    latent_format=WanLatentFormat,
    denoiser_lora_keys=plain_keys,
    variants=dict.fromkeys(("", "image", "control", *BY_LAYER.values(), ANIMATE2, CAUSAL, FLOW_RVS), ()),
    variant_types={
        "image": ImageVideoDenoiser,
        "vace": ControlledVideoDenoiser,
        "camera": CameraVideoDenoiser,
        "sound": AudioVideoDenoiser,
        "speech": SpeechVideoDenoiser,
        "animate": AnimatedVideoDenoiser,
        ANIMATE2: FollowingVideoDenoiser,
        CAUSAL: FrameByFrameDenoiser,
        FLOW_RVS: SegmentedVideoDenoiser,
        "scail": PosedVideoDenoiser,
        "scail2": ColouredVideoDenoiser,
        "dancer": DancingVideoDenoiser,
    },
    model_patches=(INFINITE_TALK, UNI3C),
    comfyui=ComfyUiNames("Wan21", ("wan",), {"ModelMergeWAN2_1": MERGED_BLOCKS}),
    default=DEFAULT,
    variant_defaults={
        "image": replace(DEFAULT, video_latent=None, video_start="WanImageToVideo"),
        ANIMATE2: replace(DEFAULT, tflop=3522.0, attention=0.52, billions=16.395, video_latent=None),
    },
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "ModelSamplingSD3", "CLIPTextEncode", "EmptyHunyuanLatentVideo",
        "KSampler", "VAEDecode", "SaveAnimatedWEBP",
    ),
    memory_usage_factor=2.3,  # of the larger one: its width / 2222
    parameterisation=FLOW,
    sizes={
        "full": WanConfig(width=1536, num_blocks=30, inner_width=8960),
        "small": WanConfig(width=128, num_blocks=3, inner_width=256),
    },
)  # fmt: skip
