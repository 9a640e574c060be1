"""Nodes of Depth Anything 3 on a given geometry: what they show, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.models.kinds.geometry.depth_estimator import DepthGeometry
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.image.depth_anything import da3_geometry_to_mesh, da3_render
from tests.engine.nodes.small_store import node_context, small_store


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path))


def wall() -> DepthGeometry:
    return {"depth": torch.linspace(1, 3, 48).view(1, 6, 8), "image": torch.rand(1, 6, 8, 3), "mode": "mono"}


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ({"output": "sky_mask", "colored": False}, "output: sky_mask: the geometry has no sky"),
        ({"output": "confidence", "colored": False}, "output: confidence: the geometry has no confidence"),
        (
            {"output": "depth", "normalization": "raw", "apply_sky_clip": True},
            "apply_sky_clip: the geometry has no sky; expected that of a Mono or Metric model",
        ),
    ],
)
def test_what_a_geometry_lacks_is_refused(context: NodeContext, output: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        da3_render(context, da3_geometry=wall(), output=output)


def test_raw_depth_keeps_its_unit(context: NodeContext) -> None:
    output = {"output": "depth", "normalization": "raw", "apply_sky_clip": False}
    shown = da3_render(context, da3_geometry=wall(), output=output)
    torch.testing.assert_close(shown[..., 0], wall()["depth"])


def test_meshes_lack_sky_and_what_is_uncertain(context: NodeContext) -> None:
    geometry = wall()
    geometry["sky"], geometry["confidence"] = torch.zeros(1, 6, 8), torch.full((1, 6, 8), 2.0)
    geometry["sky"][0, 0], geometry["confidence"][0, 5] = 1.0, 1.0
    whole, ground, certain = (
        da3_geometry_to_mesh(
            context, da3_geometry=geometry, discontinuity_threshold=0.0, confidence_threshold=least, use_sky_mask=sky
        )
        for least, sky in ((0.0, False), (0.0, True), (0.5, True))
    )
    assert [mesh.vertices.shape[1] for mesh in (whole, ground, certain)] == [48, 40, 32]


def test_points_of_views_are_in_the_world(context: NodeContext) -> None:
    geometry = wall()
    geometry["depth"] = torch.full((1, 6, 8), 2.0)
    geometry["intrinsics"] = torch.tensor([[[[8.0, 0, 4], [0, 8, 3], [0, 0, 1]]]])
    pose = torch.eye(4)[None, None, :3].clone()
    pose[..., :, 3] = torch.tensor((1.0, 2.0, 3.0))
    geometry["extrinsics"] = pose
    mesh = da3_geometry_to_mesh(context, da3_geometry=geometry, discontinuity_threshold=0.0)
    ahead = mesh.vertices[0].view(6, 8, 3)[3, 4]
    torch.testing.assert_close(ahead, torch.tensor((-1.0, 2.0, 1.0)))


def test_an_image_that_is_not_there_is_refused(context: NodeContext) -> None:
    with pytest.raises(ValueError, match="batch_index: got 3, expected less than the 1 of the geometry"):
        da3_geometry_to_mesh(context, da3_geometry=wall(), batch_index=3)
