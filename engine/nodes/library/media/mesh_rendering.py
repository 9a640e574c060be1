"""The node that shows a mesh. IMAGE is float32 `[B, H, W, 3]` of 0..1."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.render import (
    Shown,
    View,
    clay_colors,
    depth_colors,
    normal_colors,
    placed,
    shown,
    texture_colors,
    vertex_colors,
    view_of,
)
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.library.media.mesh_repair import CATEGORY, MODULE
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.page_widgets import Color
from darkroom.engine.nodes.sockets import CAMERA, IMAGE, MASK, MESH
from darkroom.engine.nodes.widgets import Combo, Int

BYTES_PER_PIXEL = 200  # while an image is made: rays, and what those that meet a triangle show
MODES = ("auto", "texture", "vertex colors", "solid", "normal", "depth")

ModelInfo = Annotated[list[Any] | None, Socket("LOAD3D_MODEL_INFO"), Optional()]
Side = Annotated[int, Int(min=64, max=4096, step=8)]


def background_complaint(environment: NodeEnvironment, background: str = "#000000") -> str | None:
    """Return the fault of a background that is no color `#rrggbb`, None for one that is."""
    try:
        rgb_of(background)
    except ValueError as error:
        return str(error)
    return None


@node("RenderMesh", display_name="Render Mesh", category=CATEGORY, python_module=MODULE, check=background_complaint)
def render_mesh(
    context: NodeContext,
    *,
    mesh: MESH,
    mode: Annotated[str, Combo(MODES)],
    width: Side = 1024,
    height: Side = 1024,
    background: Color = "#000000",
    model_3d_info: ModelInfo = None,
    camera_info: Annotated[CAMERA | None, Optional()] = None,
) -> tuple[Annotated[IMAGE, Out("image")], Annotated[MASK, Out("mask")]]:
    """Show the first mesh of a batch from a camera, or from the front, and where it is."""
    check_fits(context, "width and height", width * height * BYTES_PER_PIXEL)
    item = mesh.item(0)
    if not len(item.vertices) or not len(item.faces):
        raise ValueError("mesh: empty; got no triangles, expected some")
    if model_3d_info:
        item = placed(item, model_3d_info[0])
    view = view_of(item, camera_info)
    seen = shown(item, view, height, width, context.cancel)
    image = torch.tensor(rgb_of(background)).expand(height, width, 3).clone()
    image[seen.mask] = _colors(item, mode, seen, view).clamp(0, 1)
    return image[None], seen.mask.float()[None]


def rgb_of(color: str) -> tuple[float, float, float]:
    """Return the parts, 0..1, of a color `#rrggbb`. Raises ValueError for another text."""
    try:
        red, green, blue = bytes.fromhex(color.removeprefix("#"))
    except ValueError as error:
        raise ValueError(f"background: no color; got {color[:20]!r}, expected one like '#1f77b4'") from error
    return red / 255, green / 255, blue / 255


def _colors(mesh: Mesh, mode: str, seen: Shown, view: View) -> torch.Tensor:
    """Return the colors [K, 3] of the pixels that show a mesh. What it lacks is gray."""
    has_texture, has_colors = mesh.texture is not None and mesh.uvs is not None, mesh.vertex_colors is not None
    if mode == "normal":
        return normal_colors(mesh, seen, view)
    if mode == "depth":
        return depth_colors(seen)
    if has_texture and mode in ("auto", "texture"):
        return texture_colors(mesh, seen)
    if has_colors and (mode == "vertex colors" or (mode == "auto" and not has_texture)):
        return vertex_colors(mesh, seen)
    return clay_colors(mesh, seen)


NODES = (render_mesh,)
