"""Kandinsky 5 Video, Lite and Pro (Kandinsky Lab 2025, arXiv 2511.14993): videos from text, or from an image.

Its network of images is a family of its own, with other latents.
"""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, Match, ModelFamily, Parameterisation, TensorIndex
from darkroom.engine.families.hunyuan_video.vae_files import AUTOENCODER, HunyuanVideoLatentFormat
from darkroom.engine.families.kandinsky5.config import (
    AUDIO,
    MARK,
    PRO_SIZE,
    VIDEO_CHANNELS,
    Kandinsky5Config,
    kandinsky5_config,
)
from darkroom.engine.families.kandinsky5.denoiser import Kandinsky5Denoiser
from darkroom.engine.families.kandinsky5.text import (
    CONTEXT_DIM,
    DESCRIBE_VIDEO,
    LABEL_DIM,
    text_encoders,
    tokens_and_pooled,
)
from darkroom.engine.families.kandinsky5.transformer import Kandinsky5Transformer
from darkroom.engine.families.transformer_files import always, detect_by, transformer, with_variants
from darkroom.engine.formats.weight_file import shape_of
from darkroom.engine.settings import DtypePolicy

PRO = "pro"
FLOW = Parameterisation(flow_of, {"shift": 10.0})
DEFAULT = Defaults(
    width=768, height=512, steps=50, cfg=5.0, sampler_name="euler_ancestral", scheduler="beta", shift=5.0,
    tflop=660.0, attention=0.79, billions=2.008,
    video_latent="EmptyHunyuanLatentVideo", video_start="Kandinsky5ImageToVideo",
    frames=121, frame_rate=24.0, frames_ratio=4,
)  # fmt: skip

DENOISER = transformer(
    MARK,
    configure=kandinsky5_config,
    build=Kandinsky5Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)
_detect = with_variants(detect_by(DENOISER, lacks=(AUDIO,)), DENOISER, {VIDEO_CHANNELS: ""})


def detect(index: TensorIndex) -> Match | None:
    """Recognise a network of videos by its attention to the text and the channels that it reads; Pro by its size."""
    match = _detect(index)
    if match is None:
        return None
    is_pro = shape_of(match.names["visual_embeddings.in_layer.weight"], index.shapes)[0] == PRO_SIZE
    return replace(match, variant=PRO) if is_pro else match


FAMILY = ModelFamily(
    name="kandinsky5",
    label="Kandinsky 5 Video",
    lineage=("hunyuan_video",),
    file_words=("kandinsky5",),
    other_file_words=("kandinsky5litei2i",),
    file_billions={"kandinsky5pro": 19.311},
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=Kandinsky5Denoiser,
    text=text_encoders(DESCRIBE_VIDEO),
    combine_text=tokens_and_pooled,
    vae=AUTOENCODER,
    latent_format=HunyuanVideoLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": (), PRO: ()},
    variant_defaults={PRO: replace(DEFAULT, tflop=3584.0, attention=0.62, billions=19.311)},
    comfyui=ComfyUiNames("HunyuanVideo", ("kandinsky5",)),
    default=DEFAULT,
    nodes=(
        "UNETLoader", "DualCLIPLoader", "VAELoader", "ModelSamplingSD3", "CLIPTextEncode", "EmptyHunyuanLatentVideo",
        "KSampler", "VAEDecodeTiled",
    ),
    memory_usage_factor=1.25,
    parameterisation=FLOW,
    sizes={
        "full": Kandinsky5Config(
            hidden_size=1792, intermediate_size=7168, time_dim=512, num_text_blocks=2, num_visual_blocks=32,
            head_dim=64, context_dim=CONTEXT_DIM, label_dim=LABEL_DIM,
        ),
        "small": Kandinsky5Config(
            hidden_size=128, intermediate_size=256, time_dim=64, num_text_blocks=1, num_visual_blocks=2,
            head_dim=64, context_dim=32, label_dim=64,
        ),
    },
)  # fmt: skip
