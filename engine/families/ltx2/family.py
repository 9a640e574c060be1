"""LTX-2 and LTX-2.3 (HaCohen et al. 2026, arXiv 2601.03233): videos with audio, of 19 and 22 billion weights."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily
from darkroom.engine.families.ltx2.colours import LATENT_RGB_BIAS, LATENT_RGB_FACTORS
from darkroom.engine.families.ltx2.config import (
    AUDIO_FIRST,
    VIDEO_FIRST,
    ConnectorConfig,
    Ltx2Config,
    as_described,
    description,
    ltx2_config,
)
from darkroom.engine.families.ltx2.denoiser import Ltx2Denoiser
from darkroom.engine.families.ltx2.duration import DURATION_HEAD
from darkroom.engine.families.ltx2.text import GEMMA, PROJECTION
from darkroom.engine.families.ltx2.transformer import Ltx2Transformer
from darkroom.engine.families.ltx2.vae_files import (
    AUDIO_AUTOENCODER,
    AUTOENCODER,
    DIFFUSION_AUTOENCODER,
    LATENT_UPSAMPLER,
)
from darkroom.engine.families.ltx_video.family import AUDIO_MARK, FLOW
from darkroom.engine.families.ltx_video.transformer import MARK
from darkroom.engine.families.ltx_video.vae_files import LtxVideoLatentFormat
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy


class Ltx2LatentFormat(LtxVideoLatentFormat):
    """Latents of videos [B, 128, f, h, w], which the VAE standardises, beside those of audio [B, 8, L, 16]."""

    latent_rgb_factors = LATENT_RGB_FACTORS
    latent_rgb_factors_bias = LATENT_RGB_BIAS
    takes_streams = True


DENOISER = replace(
    transformer(
        MARK,
        configure=ltx2_config,
        build=Ltx2Transformer,
        dtypes=DtypePolicy(prefers=("bfloat16",)),
    ),
    as_described=as_described,
    description=description,
)

FAMILY = ModelFamily(
    name="ltx2",
    label="LTX-2",
    lineage=("ltx_video",),
    file_words=("ltx2", "ltxav"),
    detect=detect_by(DENOISER, needs=(VIDEO_FIRST, AUDIO_FIRST, AUDIO_MARK)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=Ltx2Denoiser,
    text=(GEMMA, PROJECTION),
    takes_fewer_encoders=True,
    vae=AUTOENCODER,
    further_vaes=(AUDIO_AUTOENCODER, DIFFUSION_AUTOENCODER),
    latent_upscalers=(LATENT_UPSAMPLER,),
    latent_format=Ltx2LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    model_patches=(DURATION_HEAD,),
    variants={"": ()},
    comfyui=ComfyUiNames("LTXAV", ("ltxv",)),
    default=Defaults(
        width=768, height=512, steps=20, cfg=4.0, scheduler="simple",
        tflop=170.3, attention=0.17, billions=19.59, video_latent="EmptyLTXVLatentVideo",
        video_start="LTXVImgToVideo", frames=121, frame_rate=25.0, frames_ratio=8, text_loader="LTXAVTextEncoderLoader",
    ),
    nodes=(
        "CheckpointLoaderSimple", "LTXAVTextEncoderLoader", "LTXVAudioVAELoader", "CLIPTextEncode", "LTXVConditioning",
        "EmptyLTXVLatentVideo", "LTXVEmptyLatentAudio", "LTXVConcatAVLatent", "LTXVScheduler", "CFGGuider",
        "SamplerCustomAdvanced", "LTXVSeparateAVLatent", "VAEDecode", "LTXVAudioVAEDecode",
    ),
    memory_usage_factor=0.077,
    parameterisation=FLOW,
    sizes={
        "full": Ltx2Config(num_blocks=48),
        "small": Ltx2Config(
            num_blocks=2, heads=4, head_dim=32, audio_heads=4, audio_head_dim=16, text_dim=64,
            connectors=(ConnectorConfig(2, 32, num_blocks=1), ConnectorConfig(2, 32, num_blocks=1)),
        ),
    },
)  # fmt: skip
