"""Nodes made for other families of models that work with Stable Diffusion 1 as well, as they do in ComfyUI.

What they write into conditioning its network does not read, and an empty latent takes the channels of the model it
meets; workflows that have them go on working when only their checkpoint is changed.
"""

from __future__ import annotations

from typing import Annotated

import torch

from engine.images.pixels import resize_image
from engine.nodes.base import Combo, Float, Int, NodeContext, node
from engine.nodes.conditioning import MAX_SIDE_PX, with_options
from engine.nodes.values import CONDITIONING, IMAGE, LATENT

FLUX_MODULE = "comfy_extras.nodes_flux"
FLUX_CATEGORY = "advanced/conditioning/flux"
SD3_CHANNELS = 16
# Widths and heights that Flux Kontext was trained with.
KONTEXT_SIZES_PX = (
    (672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184), (944, 1104),
    (1024, 1024), (1104, 944), (1184, 880), (1248, 832), (1328, 800), (1392, 752), (1456, 720), (1504, 688),
    (1568, 672),
)  # fmt: skip

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]


@node("EmptySD3LatentImage", display_name=None, category="latent/sd3", python_module="comfy_extras.nodes_sd3")
def empty_sd3_latent_image(
    context: NodeContext,
    *,
    width: Side = 1024,
    height: Side = 1024,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    return {"samples": torch.zeros([batch_size, SD3_CHANNELS, height // 8, width // 8])}


@node("FluxGuidance", display_name=None, category=FLUX_CATEGORY, python_module=FLUX_MODULE)
def flux_guidance(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    guidance: Annotated[float, Float(min=0.0, max=100.0, step=0.1)] = 3.5,
) -> CONDITIONING:
    return with_options(conditioning, guidance=guidance)


@node("FluxDisableGuidance", display_name=None, category=FLUX_CATEGORY, python_module=FLUX_MODULE)
def flux_disable_guidance(context: NodeContext, *, conditioning: CONDITIONING) -> CONDITIONING:
    return with_options(conditioning, guidance=None)


@node("FluxKontextImageScale", display_name=None, category=FLUX_CATEGORY, python_module=FLUX_MODULE)
def flux_kontext_image_scale(context: NodeContext, *, image: IMAGE) -> IMAGE:
    """Scaled and cut to the size of Flux Kontext whose aspect ratio is nearest."""
    aspect = image.shape[2] / image.shape[1]
    width, height = min(KONTEXT_SIZES_PX, key=lambda size: (abs(aspect - size[0] / size[1]), size))
    return resize_image(image, width, height, "lanczos", "center")


@node(
    "FluxKontextMultiReferenceLatentMethod",
    display_name=None,
    category=FLUX_CATEGORY,
    python_module=FLUX_MODULE,
    experimental=True,
)
def flux_kontext_multi_reference_latent_method(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    reference_latents_method: Annotated[str, Combo(("offset", "index", "uxo/uno"))],
) -> CONDITIONING:
    method = "uxo" if "uxo" in reference_latents_method else reference_latents_method
    return with_options(conditioning, reference_latents_method=method)


NODES = (
    empty_sd3_latent_image, flux_guidance, flux_disable_guidance, flux_kontext_image_scale,
    flux_kontext_multi_reference_latent_method,
)  # fmt: skip
