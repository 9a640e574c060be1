"""Nodes of MoGe: geometry of images and panoramas, shown and as meshes. IMAGE is float32 `[B, H, W, C]` of 0..1."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
from torch.nn import functional

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.depth_images import normals_of_points, percentile_nearness, quantiles
from darkroom.engine.images.panorama import Views, directions_of, grid, icosahedron_views, view_of
from darkroom.engine.images.panorama_distance import joined_distance
from darkroom.engine.images.pixels import colours_of
from darkroom.engine.images.turbo import turbo
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.grid_mesh import grid_mesh
from darkroom.engine.models.kinds.geometry.geometry_estimator import GeometryEstimator
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import FLOAT, IMAGE, MESH, MOGE_GEOMETRY, MOGE_MODEL
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, ModelCombo

MODULE = "comfy_extras.nodes_moge"
CATEGORY = "image/geometry estimation"
RIGHT_ANGLE = 90.0  # of the views of a panorama
LEAST_MERGED_PX = 32
MERGED_BYTES = 400  # a pixel of a panorama while distances are joined
POINT_BYTES = 80  # a pixel of the image while points are computed of distances
FAR_SHARE, TIMES_AS_FAR = 0.95, 5.0  # where no view has a valid distance
BatchSize = Annotated[int, Int(min=1, max=64)]
Level = Annotated[int, Int(min=0, max=9)]
NamedGeometry = Annotated[MOGE_GEOMETRY, Out("moge_geometry")]
SHOWN = ("depth", "depth_colored", "normal_opengl", "normal_directx", "mask")


@node("LoadMoGeModel", display_name="Load MoGe Model", category="model/loaders", python_module=MODULE,
      facts=NodeFacts(items="alike"))  # fmt: skip
def load_moge_model(
    context: NodeContext, *, model_name: Annotated[str, ModelCombo("geometry_estimation")]
) -> MOGE_MODEL:
    """Load MoGe, version 1 or 2."""
    loaded: MOGE_MODEL = context.models.vision.geometry_estimator(model_name)
    return loaded


@node("MoGeInference", display_name="Run MoGe Inference", category=CATEGORY, python_module=MODULE)
def moge_inference(
    context: NodeContext,
    *,
    moge_model: MOGE_MODEL,
    image: IMAGE,
    resolution_level: Level = 9,
    fov_x_degrees: Annotated[float, Float(min=0.0, max=170.0, step=0.1, extra={"advanced": True})] = 0.0,
    batch_size: BatchSize = 4,
    force_projection: Annotated[bool, Flag(extra={"advanced": True})] = True,
    apply_mask: Annotated[bool, Flag(extra={"advanced": True})] = True,
) -> NamedGeometry:
    """Estimate points in space, depth and cameras of images."""
    found = []
    for pixels in torch.split(colours_of(image, "image"), batch_size):
        context.cancel.check()
        found.append(
            moge_model.estimate(
                pixels, resolution_level, fov_x_degrees or None, is_projected=force_projection, is_masked=apply_mask
            )
        )
        context.report_progress(sum(len(item["depth"]) for item in found), len(image))
    return {name: torch.cat([item[name] for item in found]) for name in found[0]}  # type: ignore[literal-required,return-value]


@node("MoGePanoramaInference", display_name="Run MoGe Panorama Inference", category=CATEGORY, python_module=MODULE)
def moge_panorama_inference(
    context: NodeContext,
    *,
    moge_model: MOGE_MODEL,
    image: IMAGE,
    resolution_level: Level = 9,
    split_resolution: Annotated[int, Int(min=256, max=1024)] = 512,
    merge_resolution: Annotated[int, Int(min=256, max=8192)] = 1920,
    batch_size: Annotated[int, Int(min=1, max=12)] = 4,
) -> NamedGeometry:
    """Estimate the distances of an equirectangular panorama from twelve views of it.

    Raises ValueError for several images, and where joining the views would not fit the free memory.
    """
    if len(image) != 1:
        raise ValueError(f"image: got a batch of {len(image)}, expected one panorama")
    pixels = colours_of(image, "image")
    height, width = pixels.shape[1:3]
    scale = min(merge_resolution / max(height, width), 1.0)
    sides = (max(int(height * scale), LEAST_MERGED_PX), max(int(width * scale), LEAST_MERGED_PX))
    needed_bytes = max(sides[0] * sides[1] * MERGED_BYTES, height * width * POINT_BYTES)
    check_fits(context, "image, merge_resolution", needed_bytes)
    views = icosahedron_views()
    distances, masks = _of_views(context, moge_model, pixels, views, (resolution_level, split_resolution, batch_size))
    distance, mask = joined_distance(sides, views, distances, masks, context.cancel.check)
    if sides != (height, width):
        distance = functional.interpolate(distance[None, None], size=(height, width), mode="bilinear")[0, 0]
        mask = functional.interpolate(mask[None, None].float(), size=(height, width), mode="nearest")[0, 0] > 0
    if bool(mask.any()) and not bool(mask.all()):
        (far,) = quantiles(distance[mask], FAR_SHARE)
        distance = torch.where(mask, distance, far * TIMES_AS_FAR)
    points = directions_of(grid(height, width)) * distance[..., None]
    return {"image": pixels.cpu(), "points": points[None], "depth": distance[None], "mask": mask[None]}


def _of_views(
    context: NodeContext, model: GeometryEstimator, pixels: torch.Tensor, views: Views, sizes: tuple[int, int, int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return distances and masks [h, w] of views of a panorama [1, H, W, 3]; `sizes`: level, side, views together."""
    level, side, together = sizes
    distances: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    for rotations in torch.split(views.rotations, together):
        context.cancel.check()
        seen = torch.stack([view_of(pixels[0].movedim(-1, 0).float().cpu(), item, side) for item in rotations])
        found = model.estimate(seen.movedim(1, -1), level, RIGHT_ANGLE, is_masked=False, in_metres=False)
        distances += list(found["points"].norm(dim=-1).numpy())
        masks += list(found["mask"].numpy())
        context.report_progress(len(distances), len(views.rotations))
    return distances, masks


@node("MoGeRender", display_name="Render MoGe Geometry", category=CATEGORY, python_module=MODULE)
def moge_render(
    context: NodeContext,
    *,
    moge_geometry: MOGE_GEOMETRY,
    output: Annotated[str, Combo(values=SHOWN)] = "depth",
) -> IMAGE:
    """Show the nearness, the normals or the mask of a geometry."""
    if output == "mask":
        return moge_geometry["mask"].float()[..., None].repeat(1, 1, 1, 3)
    if output in ("depth", "depth_colored"):
        near = torch.stack([percentile_nearness(depth.float()) for depth in moge_geometry["depth"]])
        return turbo(near) if output == "depth_colored" else near[..., None].repeat(1, 1, 1, 3)
    normals = moge_geometry.get("normal")
    if normals is None:
        normals = torch.stack([normals_of_points(points) for points in moge_geometry["points"]])
    signs = normals.new_tensor((1.0, -1.0 if output == "normal_opengl" else 1.0, -1.0))
    return (normals * signs / 2 + 0.5).clamp(0, 1)


@node("MoGePointMapToMesh", display_name="Convert MoGe Point Map to Mesh", category=CATEGORY, python_module=MODULE)
def moge_point_map_to_mesh(
    context: NodeContext,
    *,
    moge_geometry: MOGE_GEOMETRY,
    batch_index: Annotated[int, Int(min=0, max=4096)] = 0,
    decimation: Annotated[int, Int(min=1, max=8)] = 1,
    discontinuity_threshold: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.04,
    texture: Annotated[bool, Flag()] = True,
) -> MESH:
    """Make a mesh of the points of an image.

    Raises ValueError for an image that the batch does not have, and where nothing is left.
    """
    num_images = len(moge_geometry["points"])
    if batch_index >= num_images:
        raise ValueError(f"batch_index: got {batch_index}, expected less than the {num_images} of the geometry")
    points, depth = moge_geometry["points"][batch_index], moge_geometry["depth"][batch_index]
    corners, faces, places = grid_mesh(points, depth, decimation, discontinuity_threshold)
    if len(faces) == 0:
        raise ValueError("moge_geometry: no triangle is left; expected discontinuity_threshold 0, or apply_mask off")
    if "intrinsics" in moge_geometry:
        corners, faces = corners * torch.tensor((1.0, -1.0, -1.0)), faces[:, [0, 2, 1]]
    else:  # a panorama's third is up
        corners = corners[:, [1, 2, 0]]
    image = moge_geometry["image"][batch_index : batch_index + 1] if texture else None
    return Mesh(vertices=corners[None], faces=faces[None], uvs=places[None], texture=image)


@node("MoGeGeometryToFOV", display_name="Get FoV from MoGe Geometry", category=CATEGORY, python_module=MODULE)
def moge_geometry_to_fov(
    context: NodeContext,
    *,
    moge_geometry: MOGE_GEOMETRY,
    axis: Annotated[str, Combo(values=("vertical", "horizontal", "diagonal"))] = "vertical",
    unit: Annotated[str, Combo(values=("degrees", "radians"))] = "degrees",
) -> tuple[Annotated[FLOAT, Out("fov")], Annotated[FLOAT, Out("focal_pixels")]]:
    """Return the angle of view and the focal length in pixels of the first image.

    Raises ValueError for panoramas, which have neither.
    """
    if "intrinsics" not in moge_geometry:
        raise ValueError("moge_geometry: got that of a panorama, expected that of images seen by a camera")
    across, down = (float(moge_geometry["intrinsics"][0, index, index]) for index in (0, 1))
    tangents = {"horizontal": 0.5 / across, "vertical": 0.5 / down, "diagonal": math.hypot(0.5 / across, 0.5 / down)}
    angle = 2 * math.atan(tangents[axis])
    return (angle if unit == "radians" else math.degrees(angle)), down * moge_geometry["image"].shape[1]


NODES = (
    load_moge_model,
    moge_inference,
    moge_panorama_inference,
    moge_render,
    moge_point_map_to_mesh,
    moge_geometry_to_fov,
)
