"""3D models through graphs: made, described, saved, shown, loaded, and splats among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.splats.splat import Splat
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.media import cameras, files_3d, mesh_editing, splats
from darkroom.engine.nodes.sockets import MESH, SPLAT
from darkroom.engine.settings import EngineSettings
from tests.engine.media.splats.test_files import cloud
from tests.engine.media.test_glb import CORNERS, FACES
from tests.engine.nodes.library.media.studio import of_class

VIEW: dict[str, Any] = {"viewport_state": {"camera_info": {"fov": 7}}, "width": 64, "height": 48}


MOVED = {
    **{f"translate_{axis}": 1.0 for axis in "xyz"},
    **{f"rotate_{axis}": 0.0 for axis in "xyz"},
    **{f"scale_{axis}": 1.0 for axis in "xyz"},
}


@node("Tetrahedron", category="test")
def tetrahedron(context: NodeContext) -> MESH:
    return Mesh(CORNERS, FACES, uvs=torch.zeros(1, 4, 2))


@node("Cloud", category="test")
def a_cloud(context: NodeContext) -> SPLAT:
    made: Splat = cloud()
    return made


class Bench:
    def __init__(self, base: Path) -> None:
        self.settings = EngineSettings(base_directory=base, cpu=True)
        (self.settings.input_path / "3d").mkdir(parents=True)
        classes = (mesh_editing, files_3d, cameras, splats)
        self.engine = Engine(
            self.settings, (tetrahedron, a_cloud, *(item for topic in classes for item in topic.NODES))
        )

    def run(self, prompt: dict[str, Any]) -> RunResult:
        checked = self.engine.check(prompt)
        return self.engine.submit(RunRequest("p", checked.prompt, checked.outputs, {}), lambda event: None).result(60)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.engine.close()


def test_a_mesh_is_saved_as_a_file_that_is_loaded_again(bench: Bench) -> None:
    result = bench.run(
        {
            "mesh": of_class("Tetrahedron"),
            "info": of_class("GetMeshInfo", mesh=["mesh", 0]),
            "file": of_class("MeshToFile3D", mesh=["info", 0]),
            "save": of_class("Save3DAdvanced", model_3d=["file", 0], filename_prefix="3d/x", **VIEW),
        }
    )
    assert list(result.outputs["info"]["text"]) == ["Vertices:   4\nFaces:      2\nAttributes: uvs"]
    shown = result.outputs["save"]
    assert shown["3d"] == [{"filename": "x_00001_.glb", "subfolder": "3d", "type": "output"}]
    assert shown["result"] == ["3d/x_00001_.glb", {"fov": 7}, []]
    saved = bench.settings.output_path / "3d" / "x_00001_.glb"
    saved.rename(bench.settings.input_path / "3d" / "y.glb")
    content = (bench.settings.input_path / "3d" / "y.glb").read_bytes()
    again = bench.run(
        {
            "load": of_class("Load3DAdvanced", model_file="3d/y.glb", **VIEW),
            "show": of_class("Preview3DAdvanced", model_3d=["load", 0], camera_info={"fov": 9}, **VIEW),
        }
    )
    [item] = again.outputs["show"]["3d"]
    assert item["type"] == "temp" and again.outputs["show"]["result"][1] == {"fov": 9}
    assert (bench.settings.temp_path / item["filename"]).read_bytes() == content


@pytest.mark.parametrize("kind", ["ply", "ksplat", "spz"])
def test_a_splat_is_saved_and_read(bench: Bench, kind: str) -> None:
    result = bench.run(
        {
            "cloud": of_class("Cloud"),
            "two": of_class("MergeSplat", **{"splats.splat0": ["cloud", 0], "splats.splat1": ["cloud", 0]}),
            "moved": of_class("TransformSplat", splat=["two", 0], **MOVED),
            "file": of_class("SplatToFile3D", splat=["moved", 0], format=kind),
            "read": of_class("File3DToSplat", model_3d=["file", 0]),
            "again": of_class("SplatToFile3D", splat=["read", 0], format=kind),
            "save": of_class("SaveGaussianSplat", model_3d=["again", 0], filename_prefix="s", **VIEW),
        }
    )
    [item] = result.outputs["save"]["3d"]
    assert item["filename"] == f"s_00001_.{kind}"
    assert (bench.settings.output_path / item["filename"]).stat().st_size > 500


def test_a_model_that_is_not_there_is_refused_before_anything_runs(bench: Bench) -> None:
    prompt = {
        "load": of_class("Load3DAdvanced", model_file="3d/no.glb", **VIEW),
        "show": of_class("Preview3DAdvanced", model_3d=["load", 0], **VIEW),
    }
    for name in ("3d/no.glb", "../../etc/passwd"):
        prompt["load"]["inputs"]["model_file"] = name
        with pytest.raises(PromptRejected) as caught:
            bench.run(prompt)
        assert f"Invalid 3D model file: {name}" in str(caught.value.as_json())


def test_what_is_no_file_is_named() -> None:
    context: Any = None
    with pytest.raises(ValueError, match="model_3d: no file; got dict"):
        files_3d.preview_3d_advanced(context, model_3d={"x": 1}, **VIEW)


def test_a_camera_in_an_orbit_looks_at_its_target() -> None:
    context: Any = None
    mode = {"mode": "orbit", "yaw": 90.0, "pitch": 0.0, "distance": 2.0}
    camera = cameras.create_camera_info(context, mode=mode, target_x=1.0, camera_type="perspective")
    assert camera["position"] == pytest.approx({"x": 3.0, "y": 0.0, "z": 0.0}, abs=1e-6)
    half = 0.5**0.5
    assert camera["quaternion"] == pytest.approx({"x": 0.0, "y": half, "z": 0.0, "w": half}, abs=1e-6)
    above = {"mode": "look_at", "position_x": 0.0, "position_y": 5.0, "position_z": 0.0}
    straight = cameras.create_camera_info(context, mode=above, roll=90.0, camera_type="orthographic")
    assert sum(value**2 for value in straight["quaternion"].values()) == pytest.approx(1.0)
