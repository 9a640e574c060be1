"""Nodes of Depth Anything 3: depth of images, shown and as meshes. IMAGE is float32 `[B, H, W, C]` of 0..1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.depth_images import percentile_depth, scaled_confidence, spanning_depth, with_far_sky
from darkroom.engine.images.turbo import turbo
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.grid_mesh import grid_mesh
from darkroom.engine.models.kinds.geometry.depth_estimator import DepthGeometry
from darkroom.engine.models.kinds.geometry.reference_view import STRATEGIES
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import DA3_GEOMETRY, DA3_MODEL, IMAGE, MESH
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, ModelCombo

MODULE = "comfy_extras.nodes_depth_anything_3"
CATEGORY = "image/geometry estimation"
DTYPES = {"default": None, "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}
MODES = (
    ("mono", ()),
    (
        "multiview",
        (
            Field("ref_view_strategy", Combo(values=STRATEGIES), "saddle_balanced"),
            Field("pose_method", Combo(values=("cam_dec", "ray_pose")), "cam_dec"),
        ),
    ),
)
OF_DEPTH = (
    Field("normalization", Combo(values=("v2_style", "min_max", "raw")), "v2_style"),
    Field("apply_sky_clip", Flag(), False),
)
COLORED = (Field("colored", Flag(), False),)
SHOWN = (("depth", OF_DEPTH), ("depth_colored", OF_DEPTH), ("sky_mask", COLORED), ("confidence", COLORED))
MOST_SKY = 0.5  # probability of a corner of a mesh
GUESSED_FOCAL = 0.7  # of the width, where the network gives no camera: 71 degrees


@node("LoadDA3Model", display_name="Load Depth Anything 3", category="model/loaders", python_module=MODULE,
      facts=NodeFacts(items="alike"))  # fmt: skip
def load_da3_model(
    context: NodeContext,
    *,
    model_name: Annotated[str, ModelCombo("geometry_estimation")],
    weight_dtype: Annotated[str, Combo(values=tuple(DTYPES))] = "default",
) -> DA3_MODEL:
    """Load Depth Anything 3. Weights are rounded to the type, and compute in float32."""
    loaded: DA3_MODEL = context.models.vision.depth_estimator(model_name, DTYPES[weight_dtype])
    return loaded


@node("DA3Inference", display_name="Run Depth Anything 3", category=CATEGORY, python_module=MODULE)
def da3_inference(
    context: NodeContext,
    *,
    da3_model: DA3_MODEL,
    image: IMAGE,
    resolution: Annotated[int, Int(min=140, max=2520, step=14)] = 504,
    resize_method: Annotated[str, Combo(values=("upper_bound_resize", "lower_bound_resize"))] = "upper_bound_resize",
    mode: Annotated[Mapping[str, Any], DynamicChoice(fields=MODES)],
) -> Annotated[DA3_GEOMETRY, Out("da3_geometry")]:
    """Estimate the depth of images; all of them together, with their cameras, as views of one scene."""
    if mode["mode"] == "multiview":
        return da3_model.multi_view(
            image,
            resolution,
            resize_method,
            mode["ref_view_strategy"],
            mode["pose_method"],
        )

    def on_image(done: int) -> None:
        context.cancel.check()
        context.report_progress(done, len(image))

    return da3_model.mono(image, resolution, resize_method, on_image)


@node("DA3Render", display_name="Render Depth Anything 3", category=CATEGORY, python_module=MODULE)
def da3_render(
    context: NodeContext,
    *,
    da3_geometry: DA3_GEOMETRY,
    output: Annotated[Mapping[str, Any], DynamicChoice(fields=SHOWN)],
) -> IMAGE:
    """Show the depth, the sky or the confidence of a geometry, near or likely as white, or in colours.

    Raises ValueError for what the geometry does not have.
    """
    shown = output["output"]
    if shown in ("depth", "depth_colored"):
        values = _shown_depth(da3_geometry, output["normalization"], output["apply_sky_clip"])
        is_colored = shown == "depth_colored"
    else:
        values = _required(da3_geometry, "sky" if shown == "sky_mask" else "confidence", f"output: {shown}")
        values = values if shown == "sky_mask" else scaled_confidence(values)
        is_colored = output["colored"]
    return turbo(values) if is_colored else values[..., None].repeat(1, 1, 1, 3)


def _shown_depth(geometry: DepthGeometry, normalization: str, apply_sky_clip: bool) -> torch.Tensor:
    depth, sky = geometry["depth"], geometry.get("sky")
    if apply_sky_clip:
        sky = _required(geometry, "sky", "apply_sky_clip")
        depth = torch.stack([with_far_sky(*item) for item in zip(depth, sky, strict=True)])
    if normalization == "min_max":
        return spanning_depth(depth)
    if normalization == "raw":
        return depth
    skies = [None] * len(depth) if sky is None else list(sky)
    return torch.stack([percentile_depth(*item) for item in zip(depth, skies, strict=True)])


def _required(geometry: DepthGeometry, name: str, wanted_by: str) -> torch.Tensor:
    values: torch.Tensor | None = geometry.get(name)  # type: ignore[assignment]
    if values is None:
        models = "Mono or Metric" if name == "sky" else "Small, Base or Large"
        raise ValueError(f"{wanted_by}: the geometry has no {name}; expected that of a {models} model")
    return values


@node("DA3GeometryToMesh", display_name="Convert DA3 Geometry to Mesh", category=CATEGORY, python_module=MODULE)
def da3_geometry_to_mesh(
    context: NodeContext,
    *,
    da3_geometry: DA3_GEOMETRY,
    batch_index: Annotated[int, Int(min=0, max=4096)] = 0,
    decimation: Annotated[int, Int(min=1, max=8)] = 1,
    discontinuity_threshold: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.04,
    confidence_threshold: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.1,
    use_sky_mask: Annotated[bool, Flag()] = True,
    texture: Annotated[bool, Flag()] = True,
) -> MESH:
    """Make a mesh of the depth of an image, without what is uncertain, sky, or beyond an edge.

    Raises ValueError for an image that the batch does not have, and where nothing is left.
    """
    all_depth = da3_geometry["depth"]
    if batch_index >= len(all_depth):
        raise ValueError(f"batch_index: got {batch_index}, expected less than the {len(all_depth)} of the geometry")
    depth = all_depth[batch_index].nan_to_num(0.0, 0.0, 0.0)
    is_kept = (depth > 0) & _certain(da3_geometry, batch_index, confidence_threshold, use_sky_mask)
    points = torch.where(is_kept[..., None], _points(da3_geometry, batch_index, depth), torch.inf)
    corners, faces, places = grid_mesh(points, depth, decimation, discontinuity_threshold)
    if len(faces) == 0:
        raise ValueError(
            "da3_geometry: no triangle is left; expected a higher discontinuity_threshold, a lower "
            "confidence_threshold, or use_sky_mask off"
        )
    return Mesh(
        vertices=(corners * torch.tensor((1.0, -1.0, -1.0)))[None],  # up and towards the viewer
        faces=faces[:, [0, 2, 1]][None],
        uvs=places[None],
        texture=da3_geometry["image"][batch_index : batch_index + 1] if texture else None,
    )


def _certain(geometry: DepthGeometry, index: int, least_confidence: float, without_sky: bool) -> torch.Tensor:
    is_certain = torch.ones_like(geometry["depth"][index], dtype=torch.bool)
    if without_sky and "sky" in geometry:
        is_certain &= geometry["sky"][index] < MOST_SKY
    if least_confidence > 0 and "confidence" in geometry:
        is_certain &= scaled_confidence(geometry["confidence"][index : index + 1])[0] >= least_confidence
    return is_certain


def _points(geometry: DepthGeometry, index: int, depth: torch.Tensor) -> torch.Tensor:
    """Return the points [H, W, 3] of depth [H, W]: right, down and ahead, in the world where the camera is known."""
    height, width = depth.shape
    columns, rows = (torch.arange(size, dtype=torch.float32) for size in (width, height))
    pixels = torch.stack((columns.expand(height, width), rows[:, None].expand(height, width)), dim=-1)
    if "intrinsics" in geometry:
        intrinsics = geometry["intrinsics"][0, index].float()
        focal, centre = intrinsics.diagonal()[:2], intrinsics[:2, 2]
    else:
        focal, centre = torch.full((2,), width * GUESSED_FOCAL), torch.tensor(((width - 1) / 2, (height - 1) / 2))
    ahead = torch.cat(((pixels - centre) / focal, torch.ones_like(pixels[..., :1])), dim=-1)
    points = ahead * depth[..., None]
    if "extrinsics" in geometry:
        pose = geometry["extrinsics"][0, index].float()
        if bool(pose.isfinite().all()):
            points = (points - pose[:3, 3]) @ pose[:3, :3]
    return points


NODES = (load_da3_model, da3_inference, da3_render, da3_geometry_to_mesh)
