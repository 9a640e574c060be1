"""PixArt alpha and sigma (Chen et al. 2023, arXiv 2310.00426; 2024, arXiv 2403.04692).

Alpha draws in the latents of Stable Diffusion 1 and reads the size of the image, sigma in those of Stable Diffusion
XL.
"""

from __future__ import annotations

from functools import partial

import torch

from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Network,
    Parameterisation,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.pixart.denoiser import PixArtDenoiser
from darkroom.engine.families.pixart.diffusers_names import find_diffusers, lora_keys
from darkroom.engine.families.pixart.transformer import (
    CAPTIONS,
    DROPPED,
    MARK,
    SIZES,
    PixArtConfig,
    PixArtTransformer,
    pixart_config,
)
from darkroom.engine.families.sd15.vae_files import Sd15LatentFormat, autoencoder_kl
from darkroom.engine.families.sdxl.latent_format import SdxlLatentFormat
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.t5_encoding import T5Encoding

PREFIX = "model.diffusion_model."
IN_CHECKPOINT = (PREFIX, "model.")
PREFIXES = (*IN_CHECKPOINT, "diffusion_model.", "")  # of files of the network alone
VAE_PREFIX = "vae."
CONTEXT_DIM = 4096
SCHEDULE = {"beta_schedule": "sqrt_linear", "linear_start": 0.0001, "linear_end": 0.02}
SIGMA = Parameterisation(EpsDiscrete, SCHEDULE)
ALPHA = Parameterisation(EpsDiscrete, SCHEDULE, latent_format=Sd15LatentFormat)
find = behind_first(PREFIXES, MARK)


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by the layer of all modulations and those that read the prompt, in either layout."""
    names = find(index.shapes) or find_diffusers(index.shapes)
    return None if names is None or CAPTIONS not in names else Match(2, names)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Distinguish alpha from sigma by the layers that read the aspect ratio: ComfyUI's rule."""
    return ALPHA if SIZES in match.names else SIGMA


FAMILY = ModelFamily(
    name="pixart",
    label="PixArt",
    lineage=("sdxl",),
    file_words=("pixart",),
    detect=detect,
    parameterise=parameterise,
    denoiser=Network(
        layouts=(find, find_diffusers),
        in_checkpoint=(behind_first(IN_CHECKPOINT, MARK),),
        configure=pixart_config,
        build=PixArtTransformer,
        saved=partial(saved_behind, PREFIX),
        dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
        defaults={DROPPED: torch.zeros},
        float32_ends=("scale_shift_table",),
    ),
    denoiser_type=PixArtDenoiser,
    text=(t5_xxl(T5Encoding(min_length=1, empty_has_end=False)),),
    vae=autoencoder_kl(VAE_PREFIX),
    latent_format=SdxlLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("SDXL", ("pixart",)),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=4.5, scheduler="normal",
        tflop=6.6, attention=0.325, billions=0.612,
    ),
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=0.5,
    parameterisation=SIGMA,
    sizes={
        "full": PixArtConfig(width=1152, num_blocks=28, context_dim=CONTEXT_DIM),
        "small": PixArtConfig(width=288, num_blocks=3, context_dim=128),
    },
)  # fmt: skip
