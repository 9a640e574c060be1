"""LTX-Video (HaCohen et al. 2025, arXiv 2501.00103) 0.9.0 to 0.9.8: 2 and 13 billion weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, NotRecognised, Parameterisation
from darkroom.engine.families.ltx_video.denoiser import LtxVideoDenoiser
from darkroom.engine.families.ltx_video.transformer import (
    FIRST,
    MARK,
    LtxVideoConfig,
    LtxVideoTransformer,
    ltx_video_config,
)
from darkroom.engine.families.ltx_video.vae_files import AUTOENCODER, METADATA, LtxVideoLatentFormat
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.t5_encoding import T5Encoding

CAUSAL = "causal_temporal_positioning"  # Lightricks' name: the first latent frame is one frame of the video
AUDIO_MARK = "audio_adaln_single.linear.weight"  # of LTX-2, a network of videos with audio
FLOW = Parameterisation(flux_flow_of, {"shift": 2.37})
MERGED_BLOCKS = (
    "patchify_proj.", "adaln_single.", "caption_projection.", *(f"transformer_blocks.{index}." for index in range(28)),
    "scale_shift_table", "proj_out.",
)  # fmt: skip


def as_described(config: LtxVideoConfig, metadata: Mapping[str, str]) -> LtxVideoConfig:
    """Return the configuration with the first frame's place and the heads as a file's metadata have them.

    Raises `NotRecognised` for metadata that are no description.
    """
    try:
        described: dict[str, Any] = json.loads(metadata.get(METADATA, "{}")).get("transformer") or {}
        heads = int(described.get("num_attention_heads", config.heads))
        is_causal = bool(described.get(CAUSAL, config.starts_with_one_frame))
    except (ValueError, AttributeError, TypeError) as error:
        raise NotRecognised(f"a network of videos with metadata that do not describe it ({error})") from error
    return replace(config, heads=heads, starts_with_one_frame=is_causal)


def description(config: LtxVideoConfig) -> dict[str, dict[str, Any]]:
    """Return the metadata of a file with a network of this configuration."""
    return {METADATA: {"transformer": {CAUSAL: config.starts_with_one_frame, "num_attention_heads": config.heads}}}


DENOISER = replace(
    transformer(
        MARK,
        configure=ltx_video_config,
        build=LtxVideoTransformer,
        dtypes=DtypePolicy(prefers=("bfloat16",)),
    ),
    as_described=as_described,
    description=description,
)

FAMILY = ModelFamily(
    name="ltx_video",
    label="LTX-Video",
    file_words=("ltxv", "ltxvideo"),
    other_file_words=("ltx2", "ltxav"),
    detect=detect_by(DENOISER, needs=(FIRST,), lacks=(AUDIO_MARK,)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=LtxVideoDenoiser,
    text=(t5_xxl(T5Encoding(min_length=128, masks_padding=True, returns_mask=True)),),
    vae=AUTOENCODER,
    latent_format=LtxVideoLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("LTXV", ("ltxv",), {"ModelMergeLTXV": MERGED_BLOCKS}),
    default=Defaults(
        width=768, height=512, steps=20, cfg=3.0, scheduler="simple",
        tflop=22.6, attention=0.25, billions=1.923, video_latent="EmptyLTXVLatentVideo",
        video_start="LTXVImgToVideo", frames=97, frame_rate=25.0, frames_ratio=8,
    ),
    nodes=(
        "CheckpointLoaderSimple", "CLIPLoader", "CLIPTextEncode", "LTXVConditioning", "EmptyLTXVLatentVideo",
        "LTXVScheduler", "SamplerCustom", "VAEDecode",
    ),
    memory_usage_factor=5.5,
    parameterisation=FLOW,
    sizes={
        "full": LtxVideoConfig(width=2048, num_blocks=28),
        "small": LtxVideoConfig(width=128, num_blocks=3, context_dim=128),
    },
)  # fmt: skip
