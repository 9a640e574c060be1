"""Stable Zero123: another view of an object, from an image (Zero-1-to-3: Liu et al. 2023, arXiv 2303.11328).

Its network is that of Stable Diffusion 1 with the image's latent beside the noise. It takes no prompt.
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
    Shapes,
    TensorIndex,
    TensorReader,
    Tensors,
)
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.sd15.unet_files import PREFIX, find_unet, level_unet, unet_lora_keys
from darkroom.engine.families.sd15.vae_files import AUTOENCODER_KL, Sd15LatentFormat
from darkroom.engine.families.zero123.denoiser import ViewDenoiser
from darkroom.engine.families.zero123.unet import PROJECTION, Zero123Unet, project, zero123_config
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.clip_vision import ClipVisionConfig

CONTEXT_DIM = 768
CAMERA_DIM = 4
IN_CHANNELS = 8  # the noisy latent and the image's
BESIDE = "cc_projection."  # what stands beside the UNet, in files and saved ones


def _names(shapes: Shapes) -> Names | None:
    """Return the names of the UNet and of the projection, which files have without the UNet's prefix or behind it."""
    found = find_unet(TensorIndex(shapes))
    if found is None or found.traits.in_channels != IN_CHANNELS:
        return None
    names = {**found.names, **{name: name for name in shapes if name.startswith(BESIDE)}}
    return names if PROJECTION in names else None


def detect(index: TensorIndex) -> Match | None:
    """Recognise the UNet by the projection beside it."""
    names = _names(index.shapes)
    return None if names is None else Match(3, names)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the only one: the network predicts the noise."""
    return Parameterisation(EpsDiscrete)


def _saved(tensors: Tensors) -> dict[str, torch.Tensor]:
    beside = {name: tensor for name, tensor in tensors.items() if name.startswith(BESIDE)}
    return saved_behind(PREFIX, {name: item for name, item in tensors.items() if name not in beside}) | beside


unet_config = partial(level_unet, in_channels=IN_CHANNELS)

FAMILY = ModelFamily(
    name="zero123",
    label="Stable Zero123",
    lineage=("sd15",),
    file_words=("zero123", "stablezero123"),
    detect=detect,
    parameterise=parameterise,
    denoiser=Network(
        layouts=(_names,),
        in_checkpoint=(_names,),
        configure=zero123_config,
        build=Zero123Unet,
        saved=_saved,
    ),
    denoiser_type=ViewDenoiser,
    text=(),
    vae=AUTOENCODER_KL,
    latent_format=Sd15LatentFormat,
    denoiser_lora_keys=unet_lora_keys,
    variants={"": ()},
    memory_usage_factor=2.0,
    vision_prefix="cond_stage_model.model.visual.",
    comfyui=ComfyUiNames("SD15"),
    default=Defaults(width=256, height=256, steps=20, cfg=4.0, tflop=0.189, billions=0.86),
    nodes=("ImageOnlyCheckpointLoader", "StableZero123_Conditioning", "KSampler", "VAEDecode"),
    parameterisation=Parameterisation(EpsDiscrete),
    sizes={
        "full": project(unet_config(model_channels=320, context_dim=CONTEXT_DIM), CONTEXT_DIM + CAMERA_DIM),
        "small": project(
            unet_config(model_channels=64, context_dim=64, channel_mult=(1, 1, 2, 2), blocks_per_level=1),
            64 + CAMERA_DIM,
        ),
    },
    vision={
        "full": ClipVisionConfig(),
        "small": ClipVisionConfig(num_layers=24, width=64, inner_width=64, projection_width=64),
    },
)
