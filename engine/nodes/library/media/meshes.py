"""Nodes that turn voxels into meshes and save them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import torch

from darkroom.engine.media.file_3d import KINDS, File3D
from darkroom.engine.media.glb import glb_of
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.meshes import Surface, cubes, surface_net
from darkroom.engine.models.shape_vae import Voxel
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_metadata import metadata_of
from darkroom.engine.nodes.library.media.video import as_texts
from darkroom.engine.nodes.markers import Hidden, Socket
from darkroom.engine.nodes.sockets import MESH, VOXEL
from darkroom.engine.nodes.widgets import Combo, FilePrefix, Float

MODULE = "comfy_extras.nodes_hunyuan3d"
SURFACES: dict[str, Callable[[torch.Tensor, float], Surface]] = {"surface net": surface_net, "basic": cubes}

MODEL_KINDS = ",".join(("MESH", *KINDS.values(), "FILE_3D_SPLAT_ANY", "FILE_3D_POINT_CLOUD_ANY", "FILE_3D"))

Threshold = Annotated[float, Float(min=-1.0, max=1.0, step=0.01)]


def _stacked(items: Sequence[torch.Tensor]) -> torch.Tensor | Sequence[torch.Tensor]:
    """Return tensors of one shape as one, others as they are."""
    return torch.stack(tuple(items)) if len({item.shape for item in items}) == 1 else items


def mesh_of(voxel: Voxel, surface: Callable[[torch.Tensor, float], Surface], threshold: float) -> Mesh:
    """Return the surface of each shape. Raises ValueError for one of which no voxel is above the threshold."""
    surfaces = [surface(item.cpu(), threshold) for item in voxel.data]
    return Mesh(_stacked([corners for corners, _ in surfaces]), _stacked([faces for _, faces in surfaces]))


@node(
    "VoxelToMeshBasic",
    display_name="Voxel to Mesh (Basic) (DEPRECATED)",
    category="3d",
    python_module=MODULE,
    deprecated=True,
)
def voxel_to_mesh_basic(context: NodeContext, *, voxel: VOXEL, threshold: Threshold = 0.6) -> MESH:
    """Return the faces of voxels above a threshold."""
    return mesh_of(voxel, cubes, threshold)


@node("VoxelToMesh", display_name="Voxel to Mesh", category="3d", python_module=MODULE)
def voxel_to_mesh(
    context: NodeContext,
    *,
    voxel: VOXEL,
    algorithm: Annotated[str, Combo(tuple(SURFACES))],
    threshold: Threshold = 0.6,
) -> MESH:
    """Return the surface at which voxels cross a threshold, smooth or as the faces of voxels."""
    return mesh_of(voxel, SURFACES[algorithm], threshold)


@node(
    "SaveGLB",
    display_name="Save 3D Model",
    category="3d",
    python_module=MODULE,
    is_output=True,
    essentials_category="Basics",
)
def save_glb(
    context: NodeContext,
    *,
    mesh: Annotated[Mesh | File3D, Socket(MODEL_KINDS)],
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "3d/ComfyUI",
    prompt: Annotated[Any, Hidden("PROMPT")] = None,
    extra_pnginfo: Annotated[Any, Hidden("EXTRA_PNGINFO")] = None,
) -> NodeOutput:
    """Save each mesh to its own file, with the prompt in its description, or a 3D file as it is."""
    if isinstance(mesh, File3D):
        copy = context.files.save_path(filename_prefix, suffix=mesh.suffix)
        context.files.submit(partial(mesh.save_to, str(copy.path)))
        return NodeOutput({"3d": [copy.shown()]})
    metadata = as_texts(metadata_of(context, prompt, extra_pnginfo))
    shown = []
    for index, item in enumerate(mesh.items()):
        output = context.files.save_path(filename_prefix, suffix=".glb", batch_index=index)
        context.files.submit(partial(output.path.write_bytes, glb_of(item, metadata)))
        shown.append(output.shown())
    return NodeOutput({"3d": shown})


NODES = (voxel_to_mesh_basic, voxel_to_mesh, save_glb)
