"""Nodes that turn voxels into meshes and save them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import torch

from darkroom.engine.media.meshes import Surface, cubes, surface_net, write_glb
from darkroom.engine.models.shape_vae import Mesh, Voxel
from darkroom.engine.nodes.base import Choice, FilePrefix, Float, Hidden, NodeContext, NodeOutput, node
from darkroom.engine.nodes.library.file_metadata import metadata_of
from darkroom.engine.nodes.library.media.video import as_texts
from darkroom.engine.nodes.sockets import MESH, VOXEL

MODULE = "comfy_extras.nodes_hunyuan3d"
SURFACES: dict[str, Callable[[torch.Tensor, float], Surface]] = {"surface net": surface_net, "basic": cubes}

Threshold = Annotated[float, Float(min=-1.0, max=1.0, step=0.01)]


def _stacked(items: Sequence[torch.Tensor]) -> torch.Tensor | Sequence[torch.Tensor]:
    """Return tensors of one shape as one, others as they are."""
    return torch.stack(tuple(items)) if len({item.shape for item in items}) == 1 else items


def mesh_of(voxel: Voxel, surface: Callable[[torch.Tensor, float], Surface], threshold: float) -> Mesh:
    """Return the surface of each shape. Raises ValueError for one of which no voxel is above the threshold."""
    surfaces = [surface(item.cpu(), threshold) for item in voxel.data]
    return Mesh(_stacked([corners for corners, _ in surfaces]), _stacked([faces for _, faces in surfaces]))


@node("VoxelToMeshBasic", category="3d", python_module=MODULE)
def voxel_to_mesh_basic(context: NodeContext, *, voxel: VOXEL, threshold: Threshold = 0.6) -> MESH:
    """Return the faces of voxels above a threshold."""
    return mesh_of(voxel, cubes, threshold)


@node("VoxelToMesh", category="3d", python_module=MODULE)
def voxel_to_mesh(
    context: NodeContext,
    *,
    voxel: VOXEL,
    algorithm: Annotated[str, Choice(tuple(SURFACES))],
    threshold: Threshold = 0.6,
) -> MESH:
    """Return the surface at which voxels cross a threshold, smooth or as the faces of voxels."""
    return mesh_of(voxel, SURFACES[algorithm], threshold)


@node("SaveGLB", category="3d", python_module=MODULE, is_output=True)
def save_glb(
    context: NodeContext,
    *,
    mesh: MESH,
    filename_prefix: Annotated[str, FilePrefix()] = "mesh/ComfyUI",
    prompt: Annotated[Any, Hidden("PROMPT")] = None,
    extra_pnginfo: Annotated[Any, Hidden("EXTRA_PNGINFO")] = None,
) -> NodeOutput:
    """Save each mesh to its own file, with the prompt in its description."""
    metadata = as_texts(metadata_of(context, prompt, extra_pnginfo))
    shown = []
    for index, (corners, triangles) in enumerate(zip(mesh.vertices, mesh.faces, strict=True)):
        output = context.files.save_path(filename_prefix, suffix=".glb", batch_index=index)
        context.files.submit(partial(write_glb, output.path, corners, triangles, metadata))
        shown.append(output.shown())
    return NodeOutput({"3d": shown})


NODES = (voxel_to_mesh_basic, voxel_to_mesh, save_glb)
