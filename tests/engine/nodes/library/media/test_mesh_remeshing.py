"""Nodes that change the triangles of meshes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from darkroom.engine.media.surfaces import unwrap
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.media.mesh_remeshing import decimate_mesh, remesh_mesh, unwrap_mesh
from tests.engine.media.surfaces.shapes import cube, fine_box, in_a_batch, tensor
from tests.engine.nodes.small_store import node_context, small_store

QEM = {
    "placement_mode": "qem", "line_quadric_weight": 1.0, "feature_edge_quadric_weight": 1.0,
    "feature_edge_min_dihedral_deg": 30.0, "clamp_v_to_edge": False,
}  # fmt: skip
BOX = in_a_batch(fine_box(8))


@pytest.fixture
def context(tmp_path: Path) -> NodeContext:
    return node_context(small_store(tmp_path), tmp_path)


@pytest.mark.parametrize("mode", [{"placement_mode": "midpoint"}, QEM])
def test_decimated_batch_has_at_most_so_many_triangles(context: NodeContext, mode: dict[str, object]) -> None:
    made = decimate_mesh(context, mesh=BOX, target_face_count=200, placement_mode=mode)
    assert tensor(made.faces).shape[0] == 1 and 150 < tensor(made.faces).shape[1] <= 200


def test_number_of_zero_leaves_all_triangles(context: NodeContext) -> None:
    made = decimate_mesh(context, mesh=BOX, target_face_count=0, placement_mode={"placement_mode": "midpoint"})
    assert torch.equal(tensor(made.faces), tensor(BOX.faces))


def test_signs_of_a_remeshed_batch_are_those_asked_for(context: NodeContext) -> None:
    small = replace(BOX, vertices=tensor(BOX.vertices) * 0.5)
    unsigned = {"sign_mode": "udf", "qef": False, "drop_inverted_components": False, "drop_enclosed_components": True}
    around = remesh_mesh(context, mesh=small, resolution=32, sign_mode=unsigned)
    on_it = remesh_mesh(
        context, mesh=small, resolution=32, sign_mode={"sign_mode": "sdf", "qef": True, "manifold": False}
    )
    assert tensor(around.vertices).abs().max() > 0.27
    assert tensor(on_it.vertices).abs().max() == pytest.approx(0.25, abs=1e-4)


def test_unwrapped_batch_has_a_layout_and_keeps_its_texture(context: NodeContext) -> None:
    pair = replace(in_a_batch(cube()), texture=torch.rand(1, 4, 4, 3))
    made = unwrap_mesh(context, mesh=pair, resolution=256)
    assert tensor(made.uvs).shape[:2] == tensor(made.vertices).shape[:2]
    assert made.texture is pair.texture


def test_unwrapping_without_the_library_names_it(context: NodeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwrap, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"xatlas is not installed.*pip install xatlas"):
        unwrap_mesh(context, mesh=in_a_batch(cube()))
