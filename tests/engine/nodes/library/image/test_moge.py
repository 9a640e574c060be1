"""Nodes of MoGe on a given geometry: what they show, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from darkroom.engine.models.kinds.geometry.geometry_estimator import MogeGeometry
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.image.moge import (
    moge_geometry_to_fov,
    moge_panorama_inference,
    moge_point_map_to_mesh,
    moge_render,
)
from tests.engine.nodes.small_store import node_context, small_store


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path))


def wall(*, is_panorama: bool = False) -> MogeGeometry:
    """A wall that is 2 ahead on the left and 4 on the right, with one pixel of sky."""
    depth = torch.full((1, 6, 8), 2.0)
    depth[..., 4:] = 4.0
    depth[0, 0, 0] = torch.inf
    columns, rows = torch.arange(8.0).expand(6, 8), torch.arange(6.0)[:, None].expand(6, 8)
    points = torch.stack((columns / 8 - 0.5, rows / 6 - 0.5, torch.ones(6, 8)), dim=-1)[None] * depth[..., None]
    geometry: MogeGeometry = {
        "image": torch.rand(1, 6, 8, 3), "points": points, "depth": depth, "mask": depth.isfinite()
    }  # fmt: skip
    if not is_panorama:
        geometry["intrinsics"] = torch.tensor([[[1.0, 0, 0.5], [0, 4 / 3, 0.5], [0, 0, 1]]])
    return geometry


def test_near_is_white_and_sky_black(context: NodeContext) -> None:
    shown = moge_render(context, moge_geometry=wall(), output="depth")
    assert shown.shape == (1, 6, 8, 3)
    assert shown[0, 3, 0].eq(1).all() and shown[0, 3, 7].eq(0).all() and shown[0, 0, 0].eq(0).all()
    colored = moge_render(context, moge_geometry=wall(), output="depth_colored")
    assert colored[0, 3, 0].argmax() == 0
    assert moge_render(context, moge_geometry=wall(), output="mask").sum() == 3 * 47


def test_normals_of_points_look_at_the_camera(context: NodeContext) -> None:
    shown = {
        name: moge_render(context, moge_geometry=wall(), output=name) for name in ("normal_opengl", "normal_directx")
    }
    for image in shown.values():
        torch.testing.assert_close(image[0, 3, 2], torch.tensor((0.5, 0.5, 1.0)), atol=1e-3, rtol=0)
    geometry = wall()
    geometry["normal"] = torch.tensor((0.0, 1.0, 0.0)).expand(1, 6, 8, 3)
    assert moge_render(context, moge_geometry=geometry, output="normal_opengl")[0, 0, 0].tolist() == [0.5, 0.0, 0.5]
    assert moge_render(context, moge_geometry=geometry, output="normal_directx")[0, 0, 0].tolist() == [0.5, 1.0, 0.5]


def test_meshes_are_cut_at_edges_and_face_the_viewer(context: NodeContext) -> None:
    mesh = moge_point_map_to_mesh(context, moge_geometry=wall(), discontinuity_threshold=0.0)
    assert mesh.vertices.shape == (1, 47, 3) and mesh.faces.shape == (1, 2 * (5 * 7 - 1), 3)
    assert mesh.vertices[..., 2].max() < 0 and mesh.texture is not None
    cut = moge_point_map_to_mesh(context, moge_geometry=wall(), discontinuity_threshold=0.1, texture=False)
    assert cut.faces.shape[1] < mesh.faces.shape[1] and cut.texture is None
    panorama = moge_point_map_to_mesh(context, moge_geometry=wall(is_panorama=True), discontinuity_threshold=0.0)
    assert panorama.vertices[..., 1].min() == 2.0, "its third is up"


def test_images_that_are_not_there_and_empty_meshes_are_refused(context: NodeContext) -> None:
    with pytest.raises(ValueError, match="batch_index: got 1, expected less than the 1 of the geometry"):
        moge_point_map_to_mesh(context, moge_geometry=wall(), batch_index=1)
    nothing = wall()
    nothing["points"] = torch.full_like(nothing["points"], torch.inf)
    with pytest.raises(ValueError, match="no triangle is left"):
        moge_point_map_to_mesh(context, moge_geometry=nothing)


def test_the_angle_of_view_is_that_of_the_intrinsics(context: NodeContext) -> None:
    fov, focal_px = moge_geometry_to_fov(context, moge_geometry=wall(), axis="horizontal")
    assert fov == pytest.approx(2 * math.degrees(math.atan(0.5))) and focal_px == pytest.approx(8.0)
    diagonal, _ = moge_geometry_to_fov(context, moge_geometry=wall(), axis="diagonal", unit="radians")
    assert diagonal == pytest.approx(2 * math.atan(math.hypot(0.5, 0.375)))
    with pytest.raises(ValueError, match="moge_geometry: got that of a panorama"):
        moge_geometry_to_fov(context, moge_geometry=wall(is_panorama=True))


def test_panoramas_are_refused_in_batches_and_where_memory_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    with pytest.raises(ValueError, match="image: got a batch of 2, expected one panorama"):
        moge_panorama_inference(context, moge_model=None, image=torch.zeros(2, 8, 16, 3))
    monkeypatch.setattr(context.files, "free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="image, merge_resolution: too large for the free memory"):
        moge_panorama_inference(context, moge_model=None, image=torch.zeros(1, 64, 128, 3))
