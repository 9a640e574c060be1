"""Node classes made for PiD: a latent whose image it generates."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families import registry
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.sockets import CONDITIONING, LATENT
from darkroom.engine.nodes.widgets import Combo, Float

# The family whose latent format scales latents, by the widget's value; those of Flux.2 are known by their channels.
FAMILIES = {"flux": "flux", "sd3": "sd3", "sdxl": "sdxl", "qwenimage": "wan"}
FLUX2_CHANNELS = 128


@node("PiDConditioning", display_name="PiD Conditioning", category="model/conditioning",
      python_module="comfy_extras.nodes_pid")  # fmt: skip
def pid_conditioning(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    latent: LATENT,
    latent_format: Annotated[str, Combo(tuple(FAMILIES))] = "flux",
    degrade_sigma: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.0,
) -> CONDITIONING:
    """Give a conditioning the latent to decode, of a video its first frame, and the level of its noise.

    Raises ValueError for a latent that is none of images or videos, or has another number of channels than the format.
    """
    samples = latent["samples"]
    is_flux2 = latent_format == "flux" and samples.shape[1] == FLUX2_CHANNELS
    scale = registry.family_named("flux2" if is_flux2 else FAMILIES[latent_format]).latent_format()
    if samples.ndim not in (4, 5):
        raise ValueError(f"latent: got shape {list(samples.shape)}, expected that of an image or of a video")
    if latent_format == "qwenimage" and samples.shape[1] != scale.latent_channels:
        raise ValueError(f"latent: got {samples.shape[1]} channels, expected {scale.latent_channels} for qwenimage")
    scaled = scale.process_in(samples)
    frame = scaled[:, :, 0] if scaled.ndim == 5 else scaled
    return with_options(positive, lq_latent=frame, degrade_sigma=torch.tensor([degrade_sigma]))


NODES = (pid_conditioning,)
