"""Nodes that add an image to conditioning, as an embedding or as a latent, for models that draw from images."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_appended
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP_VISION_OUTPUT, CONDITIONING, LATENT
from darkroom.engine.nodes.widgets import Float


@node("unCLIPConditioning", category="model/conditioning")
def unclip_conditioning(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    clip_vision_output: CLIP_VISION_OUTPUT,
    strength: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    noise_augmentation: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.0,
) -> CONDITIONING:
    """Attach an image's embedding to conditioning for an unCLIP model."""
    if strength == 0:
        return conditioning
    seen = {
        "clip_vision_output": clip_vision_output,
        "strength": strength,
        "noise_augmentation": noise_augmentation,
    }
    return with_appended(conditioning, "unclip_conditioning", seen)


@node("ReferenceLatent", display_name="Set Reference Latent", category="model/conditioning",
      python_module="comfy_extras.nodes_edit_model")  # fmt: skip
def reference_latent(
    context: NodeContext, *, conditioning: CONDITIONING, latent: Annotated[LATENT | None, Optional()] = None
) -> CONDITIONING:
    """Add a reference image for a model that edits by reference images."""
    return conditioning if latent is None else with_appended(conditioning, "reference_latents", latent["samples"])


NODES = (unclip_conditioning, reference_latent)
