"""Nodes that color meshes, bake textures for them, and show these. IMAGE is float32 `[B, H, W, C]` of 0..1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from darkroom.engine.media.mesh import Mesh, batched
from darkroom.engine.media.surfaces.bakes import Occlusion, ambient_occlusion, projected, tangent_normals
from darkroom.engine.media.surfaces.charts import atlas_of
from darkroom.engine.media.surfaces.normals import smooth_normals, tangents
from darkroom.engine.media.surfaces.texels import Texels, grown, normalized_uvs, texels_of
from darkroom.engine.media.surfaces.voxel_colors import sampled, vertex_colors
from darkroom.engine.models.shape_vae import Voxel
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.library.media.mesh_editing import NamedMesh
from darkroom.engine.nodes.library.media.mesh_repair import CATEGORY, MODULE
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import IMAGE, MESH, VOXEL
from darkroom.engine.nodes.widgets import Flag, Float, Int

TEXTURING = "3d/texturing"
FLAT_NORMAL = (0.5, 0.5, 1.0)
METALLIC, ROUGHNESS = 3, 4  # channels of voxels
BYTES_PER_TEXEL = 160  # while a texture is baked

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

BaseColor = Annotated[IMAGE, Out("base_color")]
Metallic = Annotated[IMAGE, Out("metallic")]
Roughness = Annotated[IMAGE, Out("roughness")]


@node("PaintMesh", display_name="Paint Mesh", category=CATEGORY, python_module=MODULE)
def paint_mesh(context: NodeContext, *, mesh: MESH, voxel_colors: VOXEL) -> NamedMesh:
    """Color each vertex as the nearest voxel of a sparse grid, black where there is none."""
    painted = []
    for item, (cells, colors) in zip(mesh.items(), _grids(voxel_colors, len(mesh)), strict=True):
        context.cancel.check()
        vertices = _tensor(item.vertices)
        if len(cells):
            found = vertex_colors(vertices.cpu().float().numpy(), cells, colors, _resolution(voxel_colors))
        else:
            found = np.zeros((len(vertices), 3), np.float32)
        painted.append(replace(item, vertex_colors=torch.from_numpy(found).to(vertices)))
    return batched(painted, mesh)


@node("MeshTextureToImage", display_name="Mesh Texture to Image", category=TEXTURING, python_module=MODULE)
def mesh_texture_to_image(
    context: NodeContext, *, mesh: MESH
) -> tuple[BaseColor, Metallic, Roughness, Annotated[IMAGE, Out("occlusion")], Annotated[IMAGE, Out("normal_map")]]:
    """Return the textures of meshes as images. Those they lack are black, but for white occlusion and flat normals."""
    base = _image_of(mesh.texture)
    if base is None:
        raise ValueError("mesh: no texture; got a mesh without a base color, expected one that has a texture applied")
    packed, normals = _image_of(mesh.metallic_roughness), _image_of(mesh.normal_map)
    packed = torch.zeros_like(base) if packed is None else packed
    normals = torch.ones_like(base) * torch.tensor(FLAT_NORMAL) if normals is None else normals
    occlusion, roughness, metallic = (channel[..., None].expand(*channel.shape, 3) for channel in packed.unbind(-1))
    if not mesh.occlusion_in_mr:
        occlusion = torch.ones_like(base)
    return base, metallic.contiguous(), roughness.contiguous(), occlusion.contiguous(), normals


@node("ApplyTextureToMesh", display_name="Apply Texture to Mesh", category=TEXTURING, python_module=MODULE)
def apply_texture_to_mesh(
    context: NodeContext,
    *,
    mesh: MESH,
    base_color: IMAGE,
    metallic: Annotated[IMAGE | None, Optional()] = None,
    roughness: Annotated[IMAGE | None, Optional()] = None,
    occlusion: Annotated[IMAGE | None, Optional()] = None,
    normal_map: Annotated[IMAGE | None, Optional()] = None,
) -> NamedMesh:
    """Attach baked images to the layout of a mesh; with a normal map also the normals and tangents it was made for."""
    _check_uvs(mesh, "mesh")
    textured = replace(mesh, texture=base_color.float().clamp(0, 1).cpu())
    if any(image is not None for image in (metallic, roughness, occlusion)):
        packed = _packed(occlusion, roughness, metallic)
        textured = replace(
            textured, metallic_roughness=packed, occlusion_in_mr=mesh.occlusion_in_mr or occlusion is not None
        )
    if normal_map is not None:
        textured = replace(textured, normal_map=normal_map.float().clamp(0, 1).cpu())
    return batched([_laid_out(item, with_tangents=normal_map is not None) for item in mesh.items()], textured)


@node("BakeTextureFromVoxel", display_name="Bake Texture From Voxel", category=TEXTURING, python_module=MODULE)
def bake_texture_from_voxel(
    context: NodeContext,
    *,
    mesh: MESH,
    voxel_colors: VOXEL,
    texture_size: Annotated[int, Int(min=64, max=8192, extra={"display_name": "resolution"})] = 2048,
    reference_mesh: Annotated[MESH | None, Optional()] = None,
) -> tuple[BaseColor, Metallic, Roughness]:
    """Color the texels of meshes by a sparse grid of voxels, for their own layout on a texture.

    Metal and roughness are black where voxels have none. With a finer reference mesh the colors are those of its
    nearest points.
    """
    _check_uvs(mesh, "mesh")
    check_fits(context, "texture_size", texture_size**2 * len(mesh) * BYTES_PER_TEXEL)
    baked: list[torch.Tensor] = []
    for item, (cells, colors) in zip(mesh.items(), _grids(voxel_colors, len(mesh)), strict=True):
        context.cancel.check()
        texels = _texels(context, item, texture_size)
        points = texels.values(_faces(item), _tensor(item.vertices).cpu().float())
        if reference_mesh is not None:
            points = projected(points, reference_mesh.item(len(baked) % len(reference_mesh)), context.cancel)
        baked.append(_baked(texels, points, cells, colors, _resolution(voxel_colors)))
    images = torch.stack(baked)
    base, metallic, roughness = images[..., :3], images[..., 3:4], images[..., 4:5]
    return base.contiguous(), metallic.expand_as(base).contiguous(), roughness.expand_as(base).contiguous()


@node("BakeNormalMapFromMesh", display_name="Bake Normal Map from Mesh", category=TEXTURING, python_module=MODULE)
def bake_normal_map_from_mesh(
    context: NodeContext,
    *,
    low_poly: MESH,
    high_poly: MESH,
    resolution: Annotated[int, Int(min=64, max=8192, step=64, extra={"display_name": "resolution"})] = 1024,
    cage_distance: Annotated[float, Float(min=0.001, max=0.5, step=0.001)] = 0.05,
    ignore_backfaces: Annotated[bool, Flag()] = True,
) -> Annotated[IMAGE, Out("normal_map")]:
    """Return the normals of fine meshes in the tangent space of coarse ones, on their layout."""
    _check_uvs(low_poly, "low_poly")
    check_fits(context, "resolution", resolution**2 * len(low_poly) * BYTES_PER_TEXEL)
    return torch.stack(
        [
            tangent_normals(coarse, fine, resolution, cage_distance, context.cancel, ignore_backfaces=ignore_backfaces)
            for coarse, fine in _pairs(low_poly, high_poly)
        ]
    )


@node("BakeAmbientOcclusion", display_name="Bake Ambient Occlusion", category=TEXTURING, python_module=MODULE)
def bake_ambient_occlusion(
    context: NodeContext,
    *,
    low_poly: MESH,
    high_poly: MESH,
    resolution: Annotated[int, Int(min=64, max=8192, step=64)] = 1024,
    samples: Annotated[int, Int(min=4, max=1024, step=4)] = 64,
    max_distance: Annotated[float, Float(min=0.01, max=2.0, step=0.01)] = 0.5,
    strength: Annotated[float, Float(min=0.0, max=2.0, step=0.05)] = 1.0,
    bias: Annotated[float, Float(min=0.0001, max=0.2, step=0.0005)] = 0.01,
) -> Annotated[IMAGE, Out("occlusion")]:
    """Return how open fine meshes are around each texel of coarse ones: white in the open, dark in crevices."""
    _check_uvs(low_poly, "low_poly")
    check_fits(context, "resolution", resolution**2 * len(low_poly) * BYTES_PER_TEXEL)
    occlusion = Occlusion(samples, max_distance, bias, strength)
    return torch.stack(
        [
            ambient_occlusion(coarse, fine, resolution, occlusion, context.cancel)
            for coarse, fine in _pairs(low_poly, high_poly)
        ]
    )


@node("RenderUVAtlas", display_name="Render UV Atlas", category=TEXTURING, python_module=MODULE)
def render_uv_atlas(
    context: NodeContext, *, mesh: MESH, resolution: Annotated[int, Int(min=64, max=4096, step=64)] = 1024
) -> Annotated[IMAGE, Out("image")]:
    """Show how the first mesh lies on its texture: connected triangles in one color, with outlines."""
    _check_uvs(mesh, "mesh")
    check_fits(context, "resolution", resolution**2 * BYTES_PER_TEXEL)
    item = mesh.item(0)
    return atlas_of(_tensor(item.uvs).cpu().float(), _faces(item), resolution, context.cancel)[None]


def _check_uvs(mesh: Mesh, name: str) -> None:
    if mesh.uvs is None:
        raise ValueError(f"{name}: no layout on a texture; got a mesh without UVs, expected an unwrapped one")
    if any(len(_tensor(item.uvs)) != len(item.vertices) for item in mesh.items()):
        raise ValueError(f"{name}: UVs of another mesh; got another number of them than of vertices")


def _pairs(coarse: Mesh, fine: Mesh) -> Iterator[tuple[Mesh, Mesh]]:
    """Yield each coarse mesh with its fine one, or the only one."""
    return ((item, fine.item(index % len(fine))) for index, item in enumerate(coarse.items()))


def _resolution(voxel: Voxel) -> int:
    if voxel.voxel_colors is None or not voxel.resolution:
        raise ValueError("voxel_colors: no colors; got a grid of shapes, expected a sparse one with colors")
    return int(voxel.resolution)


def _grids(voxel: Voxel, num_items: int) -> Iterator[tuple[Indices, Floats]]:
    """Yield the cells [N, 3] and colors [N, C] for each mesh: its own, or all where voxels have no index."""
    _resolution(voxel)
    assert voxel.voxel_colors is not None
    cells, colors = voxel.data.cpu().long().numpy(), voxel.voxel_colors.detach().cpu().float().numpy()
    for index in range(num_items):
        if cells.shape[1] == 4:
            own = cells[:, 0] == index if num_items > 1 else slice(None)
            yield cells[own, 1:], colors[own]
        else:
            yield cells, colors


def _texels(context: NodeContext, mesh: Mesh, side: int) -> Texels:
    uvs = normalized_uvs(_tensor(mesh.uvs).cpu().float())
    return texels_of(uvs * side, _faces(mesh), side, side, context.cancel)


def _baked(texels: Texels, points: torch.Tensor, cells: Indices, colors: Floats, resolution: int) -> torch.Tensor:
    """Return an image [H, W, 5] of base color, metal and roughness; black without voxels or texels."""
    covered = texels.covered.numpy()
    image = np.zeros((*covered.shape, ROUGHNESS + 1), np.float32)
    if not len(cells) or not len(points):
        return torch.from_numpy(image)
    values = sampled(points.numpy(), cells, colors, resolution)
    num_channels = ROUGHNESS + 1 if values.shape[1] > ROUGHNESS else METALLIC
    image[covered, :num_channels] = values[:, :num_channels]
    return torch.from_numpy(grown(image, covered))


def _laid_out(mesh: Mesh, *, with_tangents: bool) -> Mesh:
    uvs = normalized_uvs(_tensor(mesh.uvs).float())
    if not with_tangents:
        return replace(mesh, uvs=uvs)
    vertices, faces = _tensor(mesh.vertices).cpu().float().numpy(), _tensor(mesh.faces).cpu().long().numpy()
    normals = (
        _tensor(mesh.normals).cpu().float().numpy() if mesh.normals is not None else smooth_normals(vertices, faces)
    )
    found = tangents(vertices, faces, uvs.cpu().numpy(), normals)
    return replace(mesh, uvs=uvs, normals=torch.from_numpy(normals), tangents=torch.from_numpy(found))


def _packed(*channels: torch.Tensor | None) -> torch.Tensor:
    """Return occlusion, roughness and metal as one image of the largest size; those missing are 1, 1 and 0."""
    given = [image for image in channels if image is not None]
    batch, size = given[0].shape[0], (max(image.shape[1] for image in given), max(image.shape[2] for image in given))
    parts = []
    for image, default in zip(channels, (1.0, 1.0, 0.0), strict=True):
        if image is None:
            parts.append(torch.full((batch, 1, *size), default))
            continue
        part = image.float().clamp(0, 1).cpu()[..., :1].movedim(-1, 1)
        parts.append(part if part.shape[2:] == size else functional.interpolate(part, size=size, mode="bilinear"))
    return torch.cat(parts, dim=1).movedim(1, -1)


def _image_of(texture: torch.Tensor | None) -> torch.Tensor | None:
    return None if texture is None else texture.float().clamp(0, 1).cpu().reshape(-1, *texture.shape[-3:])


def _faces(mesh: Mesh) -> torch.Tensor:
    return _tensor(mesh.faces).cpu().long()


def _tensor(values: object) -> torch.Tensor:
    assert isinstance(values, torch.Tensor)
    return values


NODES = (
    paint_mesh,
    mesh_texture_to_image,
    apply_texture_to_mesh,
    bake_texture_from_voxel,
    bake_normal_map_from_mesh,
    bake_ambient_occlusion,
    render_uv_atlas,
)
