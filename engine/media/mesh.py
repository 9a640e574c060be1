"""MESH: surfaces of triangles with what is attached to their corners, with the members that ComfyUI's nodes use.

`B` batch, `V` corners, `F` triangles, `H W` pixels of a texture, which are float32, 0..1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

Corners = torch.Tensor | Sequence[torch.Tensor]
OF_CORNERS = ("uvs", "vertex_colors", "normals", "tangents")
IMAGES = ("texture", "metallic_roughness", "normal_map", "emissive")


@dataclass
class Mesh:
    """A batch of meshes. Corners [V, 3] and triangles [F, 3] of each are one tensor [B, ...] where all are of one size.

    Packs may pad them to one size instead; `vertex_counts` and `face_counts` [B] are then what belongs to each.
    """

    vertices: Corners
    faces: Corners
    uvs: Corners | None = None  # [V, 2]
    vertex_colors: Corners | None = None  # [V, 3 or 4]
    texture: torch.Tensor | None = None  # [B, H, W, 3], the base colour
    metallic_roughness: torch.Tensor | None = None  # [B, H, W, 3]: G is roughness, B metallic, R perhaps occlusion
    vertex_counts: torch.Tensor | None = None
    face_counts: torch.Tensor | None = None
    unlit: bool = False  # shown without light, as colours of splats are
    normals: Corners | None = None  # [V, 3]
    tangents: Corners | None = None  # [V, 4]
    normal_map: torch.Tensor | None = None  # [B, H, W, 3]
    occlusion_in_mr: bool = False
    material: Mapping[str, Any] | None = None
    emissive: torch.Tensor | None = None  # [B, H, W, 3]

    def __len__(self) -> int:
        return len(self.vertices)

    def sizes(self) -> list[tuple[int, int]]:
        """Return the numbers of corners and triangles of each mesh."""
        return [(len(item.vertices), len(item.faces)) for item in self.items()]

    def items(self) -> Iterator[Mesh]:
        """Yield each mesh without its batch, and without what pads it: `[V, 3]`, `[H, W, 3]`."""
        for index in range(len(self)):
            yield self.item(index)

    def item(self, index: int) -> Mesh:
        """Return one mesh without its batch."""
        num_corners = len(self.vertices[index]) if self.vertex_counts is None else int(self.vertex_counts[index])
        num_faces = len(self.faces[index]) if self.face_counts is None else int(self.face_counts[index])
        attached = {name: values[index][:num_corners] for name, values in self._given(OF_CORNERS)}
        images = {name: values[index] for name, values in self._given(IMAGES)}
        return replace(
            self,
            vertices=self.vertices[index][:num_corners],
            faces=self.faces[index][:num_faces],
            vertex_counts=None,
            face_counts=None,
            **attached,
            **images,
        )

    def _given(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        return ((name, values) for name in names if (values := getattr(self, name)) is not None)


def batched(items: Sequence[Mesh], like: Mesh) -> Mesh:
    """Return meshes without a batch as one batch, padded to one size where theirs differ.

    Textures and the material are those of the batch `like`. What not all items have attached is left out.
    """
    attached: dict[str, Any] = {name: _padded([getattr(item, name) for item in items]) for name in OF_CORNERS}
    sizes = [(len(item.vertices), len(item.faces)) for item in items]
    is_even = len(set(sizes)) == 1
    vertices, faces = (_padded([getattr(item, name) for item in items]) for name in ("vertices", "faces"))
    assert vertices is not None and faces is not None
    return replace(
        like,
        vertices=vertices,
        faces=faces,
        vertex_counts=None if is_even else torch.tensor([num_corners for num_corners, _ in sizes]),
        face_counts=None if is_even else torch.tensor([num_faces for _, num_faces in sizes]),
        **attached,
    )


def _padded(values: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return values [N, C] of each item as [B, N, C], zeros behind those of fewer; None where an item has none."""
    found = [value for value in values if value is not None]
    if len(found) != len(values):
        return None
    stacked = found[0].new_zeros(len(found), max(map(len, found)), *found[0].shape[1:])
    for index, value in enumerate(found):
        stacked[index, : len(value)] = value
    return stacked


def rotated(mesh: Mesh, matrix: torch.Tensor) -> Mesh:
    """Return meshes turned about the origin by a matrix [3, 3], their normals and tangents with them."""

    def turned(values: torch.Tensor) -> torch.Tensor:
        directions = values[..., :3] @ matrix.to(values).T
        return torch.cat((directions, values[..., 3:]), dim=-1)  # tangents keep their handedness

    def each(values: Corners | None) -> Corners | None:
        if values is None or isinstance(values, torch.Tensor):
            return None if values is None else turned(values)
        return [turned(item) for item in values]

    vertices = each(mesh.vertices)
    assert vertices is not None
    return replace(mesh, vertices=vertices, normals=each(mesh.normals), tangents=each(mesh.tangents))


def merged(meshes: Sequence[Mesh]) -> Mesh:
    """Join the first item of each batch to one mesh: corners, triangles, places on the texture, and colours.

    Missing places are 0, missing colours white. The texture is that of the first mesh that has one.
    """
    items = [mesh.item(0) for mesh in meshes]
    corners = [_cpu(item.vertices) for item in items]
    starts = [0]
    for part in corners:
        starts.append(starts[-1] + len(part))
    faces = [_cpu(item.faces) + start for item, start in zip(items, starts, strict=False)]
    texture = next((mesh.texture.cpu() for mesh in meshes if mesh.texture is not None), None)
    return Mesh(
        torch.cat(corners)[None],
        torch.cat(faces)[None],
        uvs=_joined([item.uvs for item in items], corners, 0.0, 2),
        vertex_colors=_joined([item.vertex_colors for item in items], corners, 1.0, 3),
        texture=texture,
    )


def _cpu(values: Corners) -> torch.Tensor:
    assert isinstance(values, torch.Tensor)
    return values.cpu()


def _joined(
    given: Sequence[Corners | None], corners: Sequence[torch.Tensor], filling: float, least: int
) -> torch.Tensor | None:
    """Return values [1, V, C] of all corners; None where no mesh has any. C is at least `least`."""
    widths = [values.shape[-1] for values in given if isinstance(values, torch.Tensor)]
    if not widths:
        return None
    width = max(*widths, least)
    parts = []
    for values, own in zip(given, corners, strict=True):
        found = own.new_empty(len(own), 0) if values is None else _cpu(values)
        parts.append(torch.cat((found, found.new_full((len(own), width - found.shape[-1]), filling)), dim=-1))
    return torch.cat(parts)[None]
