"""Nodes that take a 3D model as the page shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from darkroom.engine.media.video import VideoFromFile
from darkroom.engine.nodes.library.media.load_3d import ModelOfFolder, RenderedModel, load_3d, load_3d_animation
from darkroom.engine.runtime.outputs import FileFolders
from tests.engine.nodes.small_store import node_context, small_store
from tests.engine.runtime.runs import NoFiles

RENDERED = {"image": "i.png", "mask": "m.png", "normal": "n.png", "camera_info": {"fov": 3}}


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    (tmp_path / "3d" / "deep").mkdir(parents=True)
    for name in ("cube.glb", "deep/cat.OBJ", "readme.txt"):
        (tmp_path / "3d" / name).write_bytes(b"x")
    for name, colour in (("i", (255, 0, 0, 255)), ("m", (0, 0, 0, 0)), ("n", (0, 255, 0, 255)), ("l", (9, 9, 9, 255))):
        Image.new("RGBA", (2, 3), colour).save(tmp_path / f"{name}.png")
    return tmp_path


class Files(NoFiles):
    def __init__(self, root: Path) -> None:
        self._folders = FileFolders(root, root, root)

    def input_path(self, name: str) -> Path:
        return self._folders.path(name)


def test_models_below_the_folder_are_offered_by_their_endings(inputs: Path) -> None:
    assert ModelOfFolder(".glb .obj").type_in(Files(inputs)) == ["3d/cube.glb", "3d/deep/cat.OBJ"]
    assert ModelOfFolder(".glb").complaint(Files(inputs), "3d/no.glb") == "Invalid 3D model file: 3d/no.glb"
    assert RenderedModel().type_in(Files(inputs)) == "LOAD_3D"


def test_the_rendered_images_come_out(inputs: Path) -> None:
    context = node_context(small_store(inputs), inputs)
    image = {**RENDERED, "recording": ""}
    shown, mask, path, normal, camera, video, file, info = load_3d(context, model_file="3d/cube.glb", image=image)
    assert torch.equal(shown[0, 0, 0], torch.tensor([1.0, 0.0, 0.0]))
    assert mask.shape == (1, 3, 2)
    assert float(mask.mean()) == 1.0
    assert (path, camera, video) == ("3d/cube.glb", {"fov": 3}, None)
    assert float(normal[0, 0, 0, 1]) == 1.0
    assert (file.get_bytes(), file.format, info) == ((inputs / "3d" / "cube.glb").read_bytes(), "glb", [])
    assert load_3d(context, model_file="none", image=image)[2::4] == ("", None)
    (inputs / "r.mp4").write_bytes(b"video")
    animated = load_3d_animation(context, model_file="3d/cube.glb", image={**RENDERED, "recording": "r.mp4"})
    assert len(animated) == 6
    assert isinstance(animated[-1], VideoFromFile)


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        ("i.png", "got str, expected names of files"),
        ({"image": "i.png"}, "expected mask, normal, camera_info, recording as well"),
        ({**RENDERED, "normal": "gone.png", "recording": ""}, "Invalid image file: gone.png"),
    ],
)
def test_incomplete_images_are_refused_before_anything_runs(inputs: Path, image: object, complaint: str) -> None:
    rules = load_3d.rules(Files(inputs))
    assert rules.check is not None
    found = rules.check.function(model_file="3d/cube.glb", image=image)
    assert complaint in str(found)
