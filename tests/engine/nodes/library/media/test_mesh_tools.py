"""Nodes that repair, texture and show meshes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from darkroom.engine.media.mesh import Mesh
from darkroom.engine.models.shape_vae import Voxel
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.media.mesh_rendering import background_complaint, render_mesh, rgb_of
from darkroom.engine.nodes.library.media.mesh_repair import fill_holes, mesh_smooth_normals, weld_vertices
from darkroom.engine.nodes.library.media.mesh_texturing import (
    apply_texture_to_mesh,
    bake_ambient_occlusion,
    bake_normal_map_from_mesh,
    bake_texture_from_voxel,
    mesh_texture_to_image,
    paint_mesh,
    render_uv_atlas,
)
from tests.engine.media.surfaces.shapes import cube, in_a_batch, soup_of, square_grid, tensor
from tests.engine.nodes.small_store import node_context, small_store

CELLS = torch.cartesian_prod(*[torch.arange(4)] * 3)
COLORS = torch.tensor([0.25, 0.5, 0.75, 1.0, 0.5, 1.0]).expand(64, 6)


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path), tmp_path)


@pytest.fixture
def square() -> Mesh:
    return in_a_batch(square_grid(2))


def test_welded_and_filled_meshes_stay_a_batch(context: NodeContext) -> None:
    soup = in_a_batch(soup_of(cube()))
    assert tensor(weld_vertices(context, mesh=soup).vertices).shape == (1, 8, 3)
    opened = replace(soup, faces=tensor(soup.faces)[:, 1:])
    assert tensor(fill_holes(context, mesh=opened, max_perimeter=9.0).faces).shape == (1, 12, 3)
    assert tensor(fill_holes(context, mesh=opened, max_perimeter=0.0).vertices).shape == (1, 36, 3)


def test_smooth_normals_split_sharp_edges_with_what_is_attached(context: NodeContext) -> None:
    box = replace(in_a_batch(cube()), vertex_colors=torch.arange(8.0).expand(1, 3, 8).mT)
    assert tensor(mesh_smooth_normals(context, mesh=box).normals).shape == (1, 8, 3)
    split = mesh_smooth_normals(context, mesh=box, crease_angle=30.0)
    assert tensor(split.vertices).shape == tensor(split.normals).shape == (1, 24, 3)
    positions = tensor(box.vertices)[0][tensor(split.vertex_colors)[0, :, 0].long()]
    assert torch.equal(positions, tensor(split.vertices)[0])


def test_bake_colors_a_layout_and_textures_return_as_images(context: NodeContext, square: Mesh) -> None:
    voxel = Voxel(CELLS, COLORS, 4)
    base, metallic, roughness = bake_texture_from_voxel(
        context, mesh=square, voxel_colors=voxel, texture_size=64, reference_mesh=square
    )
    textured = apply_texture_to_mesh(
        context, mesh=square, base_color=base, metallic=metallic, roughness=roughness, occlusion=base[:, :32]
    )
    images = mesh_texture_to_image(context, mesh=textured)
    assert [image[0, 9, 9].tolist() for image in images] == [
        [0.25, 0.5, 0.75],
        [1, 1, 1],
        [0.5, 0.5, 0.5],
        [0.25, 0.25, 0.25],
        [0.5, 0.5, 1.0],
    ]


def test_normal_map_comes_with_the_tangents_it_was_made_for(context: NodeContext, square: Mesh) -> None:
    normals = bake_normal_map_from_mesh(context, low_poly=square, high_poly=square, resolution=64)
    textured = apply_texture_to_mesh(context, mesh=square, base_color=normals, normal_map=normals)
    assert tensor(textured.tangents)[0, 0].tolist() == pytest.approx([1, 0, 0, 1])
    assert tensor(textured.normals)[0, 0].tolist() == pytest.approx([0, 0, 1])
    open_sky = bake_ambient_occlusion(context, low_poly=square, high_poly=square, resolution=64, samples=4)
    assert open_sky.min() == 1.0


def test_mesh_is_painted_by_the_voxels_of_its_own_index(context: NodeContext) -> None:
    pair = Mesh(torch.rand(2, 5, 3), torch.zeros(2, 1, 3, dtype=torch.long))
    of_second = Voxel(torch.cat([torch.ones(64, 1, dtype=torch.long), CELLS], dim=1), COLORS, 4)
    colors = tensor(paint_mesh(context, mesh=pair, voxel_colors=of_second).vertex_colors)
    assert colors[0].max() == 0
    assert torch.allclose(colors[1, 0], torch.tensor([0.25, 0.5, 0.75]) ** 2.2)


def test_grid_of_a_shape_has_no_colors(context: NodeContext, square: Mesh) -> None:
    with pytest.raises(ValueError, match="voxel_colors: no colors"):
        paint_mesh(context, mesh=square, voxel_colors=Voxel(torch.zeros(1, 4, 4, 4)))


def test_mesh_without_layout_or_texture_is_refused(context: NodeContext) -> None:
    bare = in_a_batch(cube())
    with pytest.raises(ValueError, match="mesh: no layout on a texture"):
        render_uv_atlas(context, mesh=bare, resolution=64)
    with pytest.raises(ValueError, match="mesh: no texture"):
        mesh_texture_to_image(context, mesh=bare)


def test_texture_beyond_the_free_memory_is_refused(
    context: NodeContext, square: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context.files, "free_bytes", lambda: 1000, raising=False)
    with pytest.raises(ValueError, match="resolution: too large for the free memory"):
        bake_normal_map_from_mesh(context, low_poly=square, high_poly=square, resolution=64)
    with pytest.raises(ValueError, match="resolution: too large for the free memory"):
        render_uv_atlas(context, mesh=square, resolution=64)
    with pytest.raises(ValueError, match="width and height: too large for the free memory"):
        render_mesh(context, mesh=square, mode="auto", width=64, height=64)


@pytest.mark.parametrize("mode", ["auto", "texture", "vertex colors", "solid", "normal", "depth"])
def test_mesh_is_shown_before_the_background(context: NodeContext, mode: str) -> None:
    image, mask = render_mesh(context, mesh=in_a_batch(cube()), mode=mode, width=64, height=64, background="#336699")
    assert image.shape == (1, 64, 64, 3)
    assert mask[0, 32, 32] == 1
    assert image[0, 0, 0].tolist() == pytest.approx(list(rgb_of("#336699")))
    assert not torch.allclose(image[0, 32, 32], image[0, 0, 0])


def test_background_that_is_no_color_is_refused_before_the_run() -> None:
    assert "background: no color" in str(background_complaint(None, background="red"))  # type: ignore[arg-type]
    assert background_complaint(None, background="#a0b0c0") is None  # type: ignore[arg-type]
