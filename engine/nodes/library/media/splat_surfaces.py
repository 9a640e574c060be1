"""Nodes that make meshes and images of splats. IMAGE is float32 `[B, H, W, 3]` of 0..1."""

from __future__ import annotations

import math
from typing import Annotated

import torch

from darkroom.engine.images.pixels import resize_image
from darkroom.engine.media.mesh import batched
from darkroom.engine.media.splats.camera import around, camera_of, framed
from darkroom.engine.media.splats.density import shape_of
from darkroom.engine.media.splats.render import STYLES, RenderOptions, rendered
from darkroom.engine.media.splats.splat import ATTRIBUTES, Splat
from darkroom.engine.media.splats.surface import SurfaceOptions, surface_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.library.media.mesh_rendering import background_complaint, rgb_of
from darkroom.engine.nodes.library.media.splats import CATEGORY, MODULE
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.page_widgets import Color
from darkroom.engine.nodes.sockets import CAMERA, IMAGE, MASK, MESH, SPLAT
from darkroom.engine.nodes.widgets import Combo, Float, Int

BYTES_PER_VOXEL, BYTES_PER_PIXEL = 64, 48  # while a surface and an image are made

Side = Annotated[int, Int(min=64, max=2048, step=8)]


@node("SplatToMesh", display_name="Extract Mesh from Splat", category=CATEGORY, python_module=MODULE,
      search_aliases=["splat to mesh", "gaussian surface nets", "splat surface", "mesh splat"],
      advanced=("smooth", "min_component", "min_opacity"))  # fmt: skip
def splat_to_mesh(
    context: NodeContext,
    *,
    splat: SPLAT,
    resolution: Annotated[int, Int(min=64, max=768, step=16)] = 384,
    kernel: Annotated[int, Int(min=1, max=8)] = 5,
    smooth: Annotated[int, Int(min=0, max=60)] = 0,
    level: Annotated[float, Float(min=0.0, max=2.0, step=0.01)] = 0.4,
    min_component: Annotated[int, Int(min=0, max=100000, step=50)] = 500,
    min_opacity: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.02,
    color_sharpen: Annotated[float, Float(min=1.0, max=8.0, step=0.5)] = 2.0,
) -> Annotated[MESH, Out("mesh")]:
    """Return the surfaces of splats in their colors, shown without light; an empty mesh where there is none."""
    options = SurfaceOptions(resolution, kernel, smooth, level, min_component, min_opacity, color_sharpen)
    made = []
    for index in range(len(splat)):
        item = splat.item(index)
        _check_size(context, item, resolution)
        made.append(surface_of(item, options, context.cancel))
        context.report_progress(index + 1, len(splat))
    return batched(made, made[0])


@node("RenderSplat", display_name="Render Splat", category=CATEGORY, python_module=MODULE,
      search_aliases=["splat to image", "render splat", "gaussian turntable"],
      advanced=("splat_scale", "headlight_shading", "opacity_threshold"), check=background_complaint)  # fmt: skip
def render_splat(
    context: NodeContext,
    *,
    splat: SPLAT,
    width: Side = 1024,
    height: Side = 1024,
    frames: Annotated[int, Int(min=-240, max=240)] = 1,
    splat_scale: Annotated[float, Float(min=0.1, max=5.0, step=0.05)] = 1.0,
    sharpen: Annotated[float, Float(min=1.0, max=8.0, step=0.5)] = 2.0,
    headlight_shading: Annotated[float, Float(min=0.0, max=3.0, step=0.05)] = 0.0,
    opacity_threshold: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.0,
    render_style: Annotated[str, Combo(STYLES)],
    background: Color = "#000000",
    bg_image: Annotated[IMAGE | None, Optional()] = None,
    camera_info: Annotated[CAMERA | None, Optional()] = None,
) -> tuple[Annotated[IMAGE, Out("image")], Annotated[MASK, Out("mask")]]:
    """Show splats from a camera, or from one that frames them, and where they are.

    More than one frame is a full turn of the camera, backwards for a negative number. The background image is repeated.
    """
    num_frames = abs(frames) or 1
    total = num_frames * len(splat)
    check_fits(context, "frames", total * width * height * BYTES_PER_PIXEL)
    plates = torch.tensor(rgb_of(background)).expand(1, height, width, 3)
    if bg_image is not None:
        plates = resize_image(bg_image[..., :3], width, height, "bicubic", "disabled").clamp(0, 1)
    options = RenderOptions(render_style, splat_scale, sharpen, headlight_shading)
    images, masks = [], []
    for index in range(total):
        item = _opaque(splat.item(index // num_frames), opacity_threshold)
        info = framed(item.positions.float()) if camera_info is None else camera_info
        if num_frames > 1:
            info = around(info, math.copysign(360.0, frames) * (index % num_frames) / num_frames)
        camera = camera_of(info, width, height)
        image, mask = rendered(item, camera, plates[index % len(plates)], options, context.cancel)
        images.append(image)
        masks.append(mask)
        context.report_progress(index + 1, total)
    return torch.stack(images), torch.stack(masks)


def _opaque(splat: Splat, threshold: float) -> Splat:
    kept = splat.opacities.reshape(-1) >= threshold
    return Splat(*(getattr(splat, name)[kept].cpu() for name in ATTRIBUTES))


def _check_size(context: NodeContext, splat: Splat, resolution: int) -> None:
    if len(splat.positions):
        check_fits(context, "resolution", math.prod(shape_of(splat, resolution)) * BYTES_PER_VOXEL)


NODES = (splat_to_mesh, render_splat)
