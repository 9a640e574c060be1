"""Nodes that turn, join and describe meshes, and make files of them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Annotated, Any

import torch

from darkroom.engine.media.file_3d import File3D
from darkroom.engine.media.glb import glb_of
from darkroom.engine.media.mesh import IMAGES, OF_CORNERS, Mesh, merged, rotated
from darkroom.engine.media.rotations import euler_xyz, matrices_of
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Hidden, Out, Socket
from darkroom.engine.nodes.parameters import DynamicChoice, Field, Growing
from darkroom.engine.nodes.sockets import MESH, STRING
from darkroom.engine.nodes.widgets import Float

MODULE = "comfy_extras.nodes_save_3d"
CATEGORY = "3d/mesh"
MILLION, MANY = 1_000_000, 10_000
LEAST_NORM = 1e-8
SHOWN_ATTRIBUTES = (*OF_CORNERS, *IMAGES[:3])
MODES = (
    ("euler_xyz", tuple(Field(f"angle_{axis}", Float(min=-360.0, max=360.0, step=0.1), 0.0) for axis in "xyz")),
    (
        "quaternion",
        tuple(Field(f"q{axis}", Float(min=-1.0, max=1.0, step=0.001), 1.0 if axis == "w" else 0.0) for axis in "wxyz"),
    ),
)

NamedMesh = Annotated[MESH, Out("mesh")]
File = Annotated[File3D, Socket("FILE_3D_GLB"), Out("model_3d")]


@node("MeshToFile3D", display_name="Create 3D File (from Mesh)", category="3d", python_module=MODULE,
      search_aliases=["mesh to glb", "mesh to file", "export mesh"])  # fmt: skip
def mesh_to_file_3d(context: NodeContext, *, mesh: MESH) -> File:
    """Make a binary glTF file of the first mesh, with all that is attached to it."""
    return File3D(io.BytesIO(glb_of(mesh.item(0))), "glb")


@node("RotateMesh", display_name="Rotate Mesh", category=CATEGORY, python_module=MODULE)
def rotate_mesh(
    context: NodeContext, *, mesh: MESH, mode: Annotated[Mapping[str, Any], DynamicChoice(fields=MODES)]
) -> NamedMesh:
    """Turn meshes about the axes x, y and z of the world, in this order and in degrees, or by a quaternion."""
    if mode["mode"] == "euler_xyz":
        quaternion = euler_xyz(mode["angle_x"], mode["angle_y"], mode["angle_z"])
    else:
        quaternion = torch.tensor([mode["qw"], mode["qx"], mode["qy"], mode["qz"]])
    if quaternion.norm() < LEAST_NORM:
        raise ValueError("mode: no rotation; got a quaternion of length 0, expected one of any other length")
    return rotated(mesh, matrices_of(quaternion))


@node("MergeMeshes", display_name="Merge Meshes", category=CATEGORY, python_module=MODULE)
def merge_meshes(
    context: NodeContext,
    *,
    meshes: Annotated[Mapping[str, Mesh], Growing(item=Field("mesh", Socket("MESH")), prefix="mesh", min=2, max=50)],
) -> NamedMesh:
    """Join the first of each batch to one mesh."""
    return merged(list(meshes.values()))


@node("GetMeshInfo", display_name="Get Mesh Info", category=CATEGORY, python_module=MODULE)
def get_mesh_info(
    context: NodeContext, *, mesh: MESH, unique_id: Annotated[Any, Hidden("UNIQUE_ID")] = None
) -> Annotated[NodeOutput, tuple[NamedMesh, Annotated[STRING, Out("info")]]]:
    """Show how many corners and triangles there are, and what is attached to them."""
    info = _described(mesh)
    context.report_text(info)
    return NodeOutput({"text": (info,)}, (mesh, info))


def _described(mesh: Mesh) -> str:
    sizes = mesh.sizes()
    corners, triangles = (sum(numbers) for numbers in zip(*sizes, strict=True))
    is_batch = len(sizes) > 1
    total = " total" if is_batch else ""
    lines = [f"Batch:      {len(sizes)} meshes"] if is_batch else []
    lines += [f"Vertices:   {_number(corners)}{total}", f"Faces:      {_number(triangles)}{total}"]
    if is_batch:
        lines += [f"  [{index}]  {v:>10,} verts  ·  {f:>10,} faces" for index, (v, f) in enumerate(sizes)]
    attached = [_attribute(name, getattr(mesh, name)) for name in SHOWN_ATTRIBUTES if getattr(mesh, name) is not None]
    return "\n".join([*lines, f"Attributes: {', '.join(attached) or 'none'}"])


def _attribute(name: str, values: Any) -> str:
    return f"{name} {values.shape[-3]}×{values.shape[-2]}" if name in IMAGES else name  # noqa: RUF001 - as ComfyUI has it


def _number(value: int) -> str:
    """Return a number with commas, a large one also in short."""
    if value >= MILLION:
        return f"{value:,} ({value / MILLION:.2f}M)"
    return f"{value:,} ({value / 1000:.1f}K)" if value >= MANY else f"{value:,}"


NODES = (mesh_to_file_3d, rotate_mesh, merge_meshes, get_mesh_info)
