"""Nodes that change the triangles of meshes: fewer ones, new ones, and their layout on a texture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch

from darkroom.engine.media.mesh import Mesh, batched
from darkroom.engine.media.surfaces import unwrap
from darkroom.engine.media.surfaces.decimate import BYTES_PER_FACE, decimated
from darkroom.engine.media.surfaces.parts import KeptParts
from darkroom.engine.media.surfaces.quadrics import Placement
from darkroom.engine.media.surfaces.remesh import Remeshing, remeshed
from darkroom.engine.media.surfaces.weld import each_item
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.library.media.mesh_editing import NamedMesh
from darkroom.engine.nodes.library.media.mesh_repair import CATEGORY, MODULE
from darkroom.engine.nodes.markers import Hidden
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import MESH
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int

MILLION = 1_000_000
HIDDEN_FLAG = Flag(extra={"advanced": True})
PLACEMENTS = (
    ("midpoint", ()),
    (
        "qem",
        (
            Field("line_quadric_weight", Float(min=0.0, max=100.0, step=0.1), 0.0),
            Field("feature_edge_quadric_weight", Float(min=0.0, max=1000.0, step=1.0), 0.0),
            Field("feature_edge_min_dihedral_deg", Float(min=0.0, max=180.0, step=1.0), 30.0),
            Field("clamp_v_to_edge", Flag(), True),
        ),
    ),
)
SIGNS = (
    (
        "udf",
        (
            Field("qef", HIDDEN_FLAG, False),
            Field("drop_inverted_components", HIDDEN_FLAG, False),
            Field("drop_enclosed_components", HIDDEN_FLAG, False),
        ),
    ),
    ("sdf", (Field("qef", Flag(), True), Field("manifold", Flag(), False))),
)

UniqueId = Annotated[Any, Hidden("UNIQUE_ID")]


@node("DecimateMesh", display_name="Decimate Mesh", category=CATEGORY, python_module=MODULE)
def decimate_mesh(
    context: NodeContext,
    *,
    mesh: MESH,
    target_face_count: Annotated[int, Int(min=0, max=50_000_000)] = 200_000,
    placement_mode: Annotated[
        Mapping[str, Any], DynamicChoice(fields=PLACEMENTS, extra={"display_name": "placement_mode"})
    ],
    unique_id: UniqueId = None,
) -> NamedMesh:
    """Reduce the triangles of meshes to a number, those first that change the surface least; 0 leaves them."""
    check_fits(context, "mesh", max(faces for _, faces in mesh.sizes()) * BYTES_PER_FACE)
    placement = _placement(placement_mode)

    def reduced(item: Mesh) -> Mesh:
        return decimated(item, target_face_count, placement, context.cancel) if target_face_count else item

    return _reported(context, mesh, each_item(mesh, reduced))


@node("RemeshMesh", display_name="Remesh Mesh (Narrow-Band DC)", category=CATEGORY, python_module=MODULE,
      advanced=("band", "project_back", "fix_poles", "drop_small_components", "precluster_max_verts"))  # fmt: skip
def remesh_mesh(
    context: NodeContext,
    *,
    mesh: MESH,
    resolution: Annotated[int, Int(min=32, max=2048)] = 512,
    sign_mode: Annotated[Mapping[str, Any], DynamicChoice(fields=SIGNS, extra={"display_name": "sign_mode"})],
    band: Annotated[float, Float(min=0.5, max=4.0, step=0.1)] = 1.0,
    project_back: Annotated[float, Float(min=0.0, max=1.0, step=0.05)] = 0.0,
    fix_poles: Annotated[bool, Flag()] = False,
    smooth_iters: Annotated[int, Int(min=0, max=20)] = 0,
    drop_small_components: Annotated[float, Float(min=0.0, max=0.5, step=0.005)] = 0.01,
    precluster_max_verts: Annotated[int, Int(min=0, max=100_000_000)] = 20_000_000,
    unique_id: UniqueId = None,
) -> NamedMesh:
    """Build meshes anew with even triangles, from the distances to their surface on a grid of the unit cube."""
    rules = Remeshing(
        resolution=resolution,
        band=band,
        is_signed=sign_mode["sign_mode"] == "sdf",
        has_sharp_edges=sign_mode["qef"],
        has_sheets=sign_mode.get("manifold", False),
        share_of_original=project_back,
        without_poles=fix_poles,
        smoothing_rounds=smooth_iters,
        most_vertices=precluster_max_verts,
        parts=KeptParts(
            least_share=drop_small_components,
            no_inverted=sign_mode.get("drop_inverted_components", False),
            no_enclosed=sign_mode.get("drop_enclosed_components", False),
        ),
    )

    def check_cells(num_bytes: int) -> None:
        check_fits(context, "resolution", num_bytes)

    made = each_item(mesh, lambda item: remeshed(item, rules, check_cells, context.cancel))
    return _reported(context, mesh, made)


@node("UnwrapMesh", display_name="Unwrap Mesh UVs", category="3d/texturing", python_module=MODULE)
def unwrap_mesh(
    context: NodeContext,
    *,
    mesh: MESH,
    segmenter: Annotated[str, Combo(("pec", "adaptive"))] = "pec",
    resolution: Annotated[int, Int(min=0, max=8192, step=256)] = 1024,
    padding: Annotated[int, Int(min=0, max=16)] = 1,
    weld_distance: Annotated[float, Float(min=0.0, max=1.0, step=0.0001)] = 0.0,
    unique_id: UniqueId = None,
) -> NamedMesh:
    """Lay meshes out on a texture; vertices between charts are split. `adaptive` takes longer to find its charts."""
    if not unwrap.is_available():
        raise ValueError("UnwrapMesh: xatlas is not installed; expected it (pip install xatlas)")
    laid_out = []
    for item in mesh.items():
        laid_out.append(
            unwrap.unwrapped(
                item, resolution, padding, weld_distance, context.cancel, is_thorough=segmenter == "adaptive"
            )
        )
    bare = Mesh(torch.zeros(0), torch.zeros(0), texture=mesh.texture)
    made = batched([replace(item, texture=None) for item in laid_out], bare)
    corners, faces = made.sizes()[0]
    context.report_text(f"UV: {_short(corners)} verts / {_short(faces)} faces · atlas ~{resolution}px")
    return made


def _placement(chosen: Mapping[str, Any]) -> Placement:
    if chosen["placement_mode"] == "midpoint":
        return Placement()
    return Placement(
        at_best_point=True,
        line_weight=chosen["line_quadric_weight"],
        feature_weight=chosen["feature_edge_quadric_weight"],
        feature_degrees=chosen["feature_edge_min_dihedral_deg"],
        on_edge=chosen["clamp_v_to_edge"],
    )


def _reported(context: NodeContext, mesh: Mesh, made: Mesh) -> Mesh:
    """Show how the number of triangles changed, and return the new meshes."""
    before, after = (sum(faces for _, faces in item.sizes()) for item in (mesh, made))
    change = f"  ({(after - before) / before * 100:+.0f}%)" if before else ""
    context.report_text(f"faces: {_short(before)} → {_short(after)}{change}")
    return made


def _short(value: int) -> str:
    """Return a number in short: 853, 12.3K, 1.23M."""
    if value >= MILLION:
        return f"{value / MILLION:.2f}".rstrip("0").rstrip(".") + "M"
    return f"{value / 1000:.1f}".rstrip("0").rstrip(".") + "K" if value >= 1000 else str(value)


NODES = (decimate_mesh, remesh_mesh, unwrap_mesh)
