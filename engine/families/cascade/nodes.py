"""Node classes made for Stable Cascade: latents of both stages, conditioning of stage B by stage C, noise levels."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.diffusion.model_sampling_variants import CascadeEps
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.sampling.model_sampling import MODEL_MODULE, sampled_with
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING, IMAGE, LATENT, MODEL, VAE
from darkroom.engine.nodes.widgets import Float, Int

MODULE = "comfy_extras.nodes_stable_cascade"
CATEGORY = "model/latent/stable cascade"
C_CHANNELS, B_CHANNELS = 16, 4
B_CELL_PX = 4

Side = Annotated[int, Int(min=256, max=MAX_SIDE_PX, step=8)]
Compression = Annotated[int, Int(min=4, max=128, step=1)]
StageC = Annotated[LATENT, Out("stage_c")]
StageB = Annotated[LATENT, Out("stage_b")]
Shift = Annotated[float, Float(min=0.0, max=100.0, step=0.01)]


@node(
    "StableCascade_EmptyLatentImage",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    advanced=("compression",),
)
def stable_cascade_empty_latent_image(
    context: NodeContext,
    *,
    width: Side = 1024,
    height: Side = 1024,
    compression: Compression = 42,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> tuple[StageC, StageB]:
    """Make the empty latents of both stages; `compression` is how many pixels a side a cell of stage C has."""
    first = torch.zeros([batch_size, C_CHANNELS, height // compression, width // compression])
    second = torch.zeros([batch_size, B_CHANNELS, height // B_CELL_PX, width // B_CELL_PX])
    return {"samples": first}, {"samples": second}


@node(
    "StableCascade_StageC_VAEEncode",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    advanced=("compression",),
)
def stable_cascade_stage_c_vae_encode(
    context: NodeContext, *, image: IMAGE, vae: VAE, compression: Compression = 42
) -> tuple[StageC, StageB]:
    """Encode an image for stage C, resized so that it has as many cells as a latent of that compression."""
    height, width = image.shape[1:3]
    cell_px = vae.downscale_ratio
    resized = resize_image(image, width // compression * cell_px, height // compression * cell_px, "bicubic", "center")
    first = vae.encode(resized[:, :, :, :3])
    second = torch.zeros([first.shape[0], B_CHANNELS, height // 8 * 2, width // 8 * 2])
    return {"samples": first}, {"samples": second}


@node(
    "StableCascade_StageB_Conditioning",
    display_name=None,
    category="model/conditioning/stable cascade",
    python_module=MODULE,
)
def stable_cascade_stage_b_conditioning(
    context: NodeContext, *, conditioning: CONDITIONING, stage_c: LATENT
) -> CONDITIONING:
    return with_options(conditioning, stable_cascade_prior=stage_c["samples"])


@node(
    "StableCascade_SuperResolutionControlnet",
    display_name=None,
    category="experimental/stable cascade",
    python_module=MODULE,
    experimental=True,
)
def stable_cascade_super_resolution_controlnet(
    context: NodeContext, *, image: IMAGE, vae: VAE
) -> tuple[Annotated[IMAGE, Out("controlnet_input")], StageC, StageB]:
    """Encode an image as the hint of a ControlNet that enlarges it, and make the empty latents of the result."""
    batch, height, width = image.shape[:3]
    hint = vae.encode(image[:, :, :, :3]).movedim(1, -1)
    first = torch.zeros([batch, C_CHANNELS, height // 16, width // 16])
    second = torch.zeros([batch, B_CHANNELS, height // 2, width // 2])
    return hint, {"samples": first}, {"samples": second}


@node("ModelSamplingStableCascade", category="model/patch/stable cascade", python_module=MODEL_MODULE)
def model_sampling_stable_cascade(context: NodeContext, *, model: MODEL, shift: Shift = 2.0) -> MODEL:
    return sampled_with(model, CascadeEps(shift))


NODES = (
    stable_cascade_empty_latent_image, stable_cascade_stage_c_vae_encode, stable_cascade_stage_b_conditioning,
    stable_cascade_super_resolution_controlnet, model_sampling_stable_cascade,
)  # fmt: skip
