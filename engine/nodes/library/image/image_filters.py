"""Nodes that filter images: blend, blur, edges, colours, noise.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1. The arithmetic is in `engine/images`.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images import filters
from darkroom.engine.images.canny import canny as canny_edges
from darkroom.engine.images.compositing import same_channels
from darkroom.engine.images.morphology import OPERATIONS
from darkroom.engine.images.morphology import morphology as apply_morphology
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Combo, Float, Int

POST_PROCESSING_MODULE = "comfy_extras.nodes_post_processing"
MORPHOLOGY_MODULE = "comfy_extras.nodes_morphology"
MAX_SEED = 0xFFFFFFFFFFFFFFFF

Radius = Annotated[int, Int(min=1, max=31, step=1)]


@node(
    "ImageInvert",
    display_name="Invert Image Colors",
    category="image/color",
    facts=NodeFacts(items="alone"),
    essentials_category="Image Tools",
)
def image_invert(context: NodeContext, *, image: IMAGE) -> IMAGE:
    return 1.0 - image


@node(
    "ImageBlend",
    display_name="Blend Images",
    category="image/filters",
    python_module=POST_PROCESSING_MODULE,
    essentials_category="Image Tools",
)
def image_blend(
    context: NodeContext,
    *,
    image1: IMAGE,
    image2: IMAGE,
    blend_factor: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.5,
    blend_mode: Annotated[str, Combo(filters.BLEND_MODES)],
) -> IMAGE:
    """Blend the second image over the first; it is scaled to the first one's size and cropped to fit."""
    below, above = same_channels(image1, image2)
    if below.shape != above.shape:
        above = resize_image(above, below.shape[2], below.shape[1], "bicubic", "center")
    blended = filters.blend(below, above, blend_mode)
    return (below * (1 - blend_factor) + blended * blend_factor).clamp(0, 1)


@node("ImageBlur", display_name="Blur Image", category="image/filters", python_module=POST_PROCESSING_MODULE)
def image_blur(
    context: NodeContext,
    *,
    image: IMAGE,
    blur_radius: Radius = 1,
    sigma: Annotated[float, Float(min=0.1, max=10.0, step=0.1)] = 1.0,
) -> IMAGE:
    """Apply a Gaussian blur; `sigma` is in units of the radius."""
    if blur_radius == 0:
        return image
    return filters.gaussian_blur(image.movedim(-1, 1), blur_radius, sigma).movedim(1, -1)


@node(
    "ImageSharpen",
    display_name="Sharpen Image",
    category="image/filters",
    python_module=POST_PROCESSING_MODULE,
    facts=NodeFacts(items="alone"),
    advanced=("sharpen_radius", "sigma", "alpha"),
)
def image_sharpen(
    context: NodeContext,
    *,
    image: IMAGE,
    sharpen_radius: Radius = 1,
    sigma: Annotated[float, Float(min=0.1, max=10.0, step=0.01)] = 1.0,
    alpha: Annotated[float, Float(min=0.0, max=5.0, step=0.01)] = 1.0,
) -> IMAGE:
    if sharpen_radius == 0:
        return image
    return filters.sharpen(image.movedim(-1, 1), sharpen_radius, sigma, alpha).clamp(0, 1).movedim(1, -1)


@node("ImageQuantize", display_name="Quantize Image", category="image/filters", python_module=POST_PROCESSING_MODULE)
def image_quantize(
    context: NodeContext,
    *,
    image: IMAGE,
    colors: Annotated[int, Int(min=1, max=256, step=1)] = 256,
    dither: Annotated[str, Combo(filters.DITHERS)],
) -> IMAGE:
    """Reduce the number of colours; every image of the batch has its own palette. Alpha is unchanged."""
    quantized = torch.stack([filters.quantize(item[..., :3], colors, dither) for item in image])
    return torch.cat((quantized.to(image.device), image[..., 3:]), dim=-1)


@node(
    "ImageAddNoise",
    display_name="Add Noise to Image",
    category="image/filters",
    python_module="comfy_extras.nodes_images",
)
def image_add_noise(
    context: NodeContext,
    *,
    image: IMAGE,
    seed: Annotated[int, Int(min=0, max=MAX_SEED, control_after_generate=True)] = 0,
    strength: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.5,
) -> IMAGE:
    """Add normal noise, drawn on the CPU so that every device gives the same result."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(image.shape, generator=generator).to(image)
    return (image + strength * noise).clamp(0.0, 1.0)


@node(
    "Canny",
    display_name="Detect Edges (Canny)",
    category="image/filters",
    python_module="comfy_extras.nodes_canny",
    essentials_category="Image Tools",
)
def canny(
    context: NodeContext,
    *,
    image: IMAGE,
    low_threshold: Annotated[float, Float(min=0.01, max=0.99, step=0.01)] = 0.4,
    high_threshold: Annotated[float, Float(min=0.01, max=0.99, step=0.01)] = 0.8,
) -> IMAGE:
    """Detect edges, drawn white on black."""
    return canny_edges(image.movedim(-1, 1), low_threshold, high_threshold).expand(-1, 3, -1, -1).movedim(1, -1)


@node("Morphology", display_name="Apply Morphology", category="image/filters", python_module=MORPHOLOGY_MODULE)
def morphology(
    context: NodeContext,
    *,
    image: IMAGE,
    operation: Annotated[str, Combo(OPERATIONS)],
    kernel_size: Annotated[int, Int(min=3, max=999, step=1)] = 3,
) -> IMAGE:
    return apply_morphology(image.movedim(-1, 1), operation, kernel_size).movedim(1, -1)


@node("ImageRGBToYUV", display_name="Image RGB to YUV", category="image/color", python_module=MORPHOLOGY_MODULE)
def image_rgb_to_yuv(
    context: NodeContext, *, image: IMAGE
) -> tuple[Annotated[IMAGE, Out("Y")], Annotated[IMAGE, Out("U")], Annotated[IMAGE, Out("V")]]:
    """Split an image into luma and colour differences (YCbCr), each as a grey image."""
    luma, blue, red = filters.rgb_to_ycbcr(image[..., :3]).chunk(3, dim=-1)
    return luma.expand(-1, -1, -1, 3), blue.expand(-1, -1, -1, 3), red.expand(-1, -1, -1, 3)


@node("ImageYUVToRGB", display_name="Image YUV to RGB", category="image/color", python_module=MORPHOLOGY_MODULE)
def image_yuv_to_rgb(context: NodeContext, *, Y: IMAGE, U: IMAGE, V: IMAGE) -> IMAGE:  # noqa: N803 - ComfyUI's names
    """Combine luma and colour differences; the channels of each input are averaged first."""
    return filters.ycbcr_to_rgb(torch.stack([channel.mean(dim=-1) for channel in (Y, U, V)], dim=-1))


NODES = (
    image_invert,
    image_blend,
    image_blur,
    image_sharpen,
    image_quantize,
    image_add_noise,
    canny,
    morphology,
    image_rgb_to_yuv,
    image_yuv_to_rgb,
)
