"""CogVideoX (Yang et al. 2024, arXiv 2408.06072), 1.0 and 1.5, and VOID (Netflix 2026), which removes objects.

VOID is CogVideoX-Fun 1.5 trained to fill in what an object hid, and what it changed around it.
"""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.diffusion.model_sampling import UnscaledVDiscrete
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorReader,
)
from darkroom.engine.families.cogvideox.denoiser import CogVideoXDenoiser
from darkroom.engine.families.cogvideox.transformer import HEAD_DIM, MARK, MODULATIONS, CogVideoXConfig
from darkroom.engine.families.cogvideox.transformer_files import DENOISER, VARIANTS, detect, lora_keys
from darkroom.engine.families.cogvideox.vae_files import (
    AUTOENCODER,
    CogVideoXLatentFormat,
    FirstCogVideoXLatentFormat,
)
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.formats.weight_file import shape_of
from darkroom.engine.text.t5_encoding import T5Encoding

MANY_HEADS = 48  # from which on latents are scaled as those of 5B
LEVELS = Parameterisation(
    UnscaledVDiscrete,
    {"linear_start": 0.00085, "linear_end": 0.012, "beta_schedule": "linear", "zsnr": True},
)
FIRST_LEVELS = replace(LEVELS, latent_format=FirstCogVideoXLatentFormat)
DEFAULT = Defaults(
    width=672, height=384, steps=30, cfg=6.0, scheduler="simple", tflop=80.0, attention=0.25, billions=5.571,
    frames=45, frame_rate=24.0, frames_ratio=4,
)  # fmt: skip


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the noise levels, with the scale of the latents by the number of heads, as in ComfyUI."""
    heads = shape_of(match.names[MARK], file.shapes)[0] // (MODULATIONS * HEAD_DIM)
    return LEVELS if heads >= MANY_HEADS else FIRST_LEVELS


FAMILY = ModelFamily(
    name="cogvideox",
    label="CogVideoX",
    file_words=("cogvideox", "voidpass"),
    file_billions={"2b": 1.694},
    detect=detect,
    parameterise=parameterise,
    denoiser=DENOISER,
    denoiser_type=CogVideoXDenoiser,
    text=(t5_xxl(T5Encoding(min_length=226)),),
    vae=AUTOENCODER,
    latent_format=CogVideoXLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants=dict.fromkeys(VARIANTS.values(), ()),
    comfyui=ComfyUiNames("CogVideoX1_5", ("cogvideox",)),
    default=DEFAULT,
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyHunyuanLatentVideo", "RandomNoise",
        "CFGGuider", "BasicScheduler", "VOIDSampler", "SamplerCustomAdvanced", "VAEDecode",
    ),
    memory_usage_factor=2.0,
    parameterisation=LEVELS,
    sizes={
        "full": CogVideoXConfig(),
        "small": CogVideoXConfig(
            hidden_size=128, num_layers=2, intermediate_size=256, time_embed_dim=64, text_dim=128,
        ),
    },
)  # fmt: skip
