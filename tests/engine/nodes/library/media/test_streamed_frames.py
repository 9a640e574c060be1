"""Videos that are decoded while they are written: by whom, and with which images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from PIL import Image, ImageSequence

from darkroom.engine.engine import Engine
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image import images
from darkroom.engine.nodes.library.media import video
from darkroom.engine.nodes.sockets import FRAMES, IMAGE
from tests.engine.nodes.library.media.studio import Studio, of_class

NUM_FRAMES = 9


class Camera:
    """Frames that become brighter, in pieces of three; counts how often they are decoded, and how."""

    def __init__(self) -> None:
        self.decoded: list[str] = []
        self.fails = False

    def stream(self) -> FrameStream:
        return FrameStream((NUM_FRAMES, 32, 48, 3), self._pieces)

    def _pieces(self) -> Iterator[torch.Tensor]:
        self.decoded.append("pieces")
        for first in range(0, NUM_FRAMES, 3):
            if self.fails and first:
                raise ValueError("the decoder failed")
            yield (torch.arange(first, first + 3) / NUM_FRAMES)[:, None, None, None].expand(3, 32, 48, 3)

    def node(self) -> Any:
        @node("Camera", category="test")
        def film(context: NodeContext) -> FRAMES:
            return self.stream() if context.output_is_streamed() else self.stream().whole()

        return film


@node("Brightness", category="test", is_output=True)
def brightness(context: NodeContext, *, images: IMAGE) -> None:
    assert isinstance(images, torch.Tensor)


@pytest.fixture
def camera() -> Camera:
    return Camera()


@pytest.fixture
def studio(tmp_path: Path, camera: Camera) -> Iterator[Studio]:
    studio = Studio(tmp_path)
    studio.engine.close()
    studio.engine = Engine(studio.settings, (camera.node(), brightness, *video.NODES, *images.NODES))
    yield studio
    studio.engine.close()


def prompt_of(save: str) -> dict[str, Any]:
    frames = {"film": of_class("Camera")}
    if save == "webm":
        return frames | {
            "save": of_class("SaveWEBM", images=["film", 0], filename_prefix="a", codec="vp9", fps=8.0, crf=20.0)
        }
    if save in ("SaveAnimatedPNG", "SaveAnimatedWEBP"):
        own = (
            {"compress_level": 4}
            if save == "SaveAnimatedPNG"
            else {"lossless": True, "quality": 80, "method": "default"}
        )
        return frames | {"save": of_class(save, images=["film", 0], filename_prefix="a", fps=8.0, **own)}
    return frames | {
        "video": of_class("CreateVideo", images=["film", 0], fps=8.0),
        "save": of_class("SaveVideo", video=["video", 0], filename_prefix="a", format="auto", codec="auto"),
    }


def brightness_of(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [float(frame.to_ndarray(format="rgb24").mean()) / 255 for frame in container.decode(video=0)]


@pytest.mark.parametrize("save", ["mp4", "webm"])
def test_frames_that_one_node_writes_are_decoded_while_it_writes(studio: Studio, camera: Camera, save: str) -> None:
    result = studio.run(prompt_of(save))
    assert result.status == "success" and camera.decoded == ["pieces"]
    [path] = studio.files(result, "save")
    assert brightness_of(path) == pytest.approx([index / NUM_FRAMES for index in range(NUM_FRAMES)], abs=0.02)


@pytest.mark.parametrize("save", ["SaveAnimatedPNG", "SaveAnimatedWEBP"])
def test_frames_of_an_animation_are_decoded_while_it_is_written(studio: Studio, camera: Camera, save: str) -> None:
    result = studio.run(prompt_of(save))
    assert result.status == "success" and camera.decoded == ["pieces"]
    [path] = studio.files(result, "save")
    with Image.open(path) as animation:
        colours = [frame.convert("RGB").getpixel((5, 5)) for frame in ImageSequence.Iterator(animation)]
    assert colours == [(level, level, level) for level in (255 * index // NUM_FRAMES for index in range(NUM_FRAMES))]


@pytest.mark.parametrize("taken", ["film", "video"])
def test_frames_that_two_nodes_take_are_decoded_once_and_held(studio: Studio, camera: Camera, taken: str) -> None:
    prompt = prompt_of("mp4")
    if taken == "film":
        prompt["see"] = of_class("Brightness", images=["film", 0])
    else:
        prompt["parts"] = of_class("GetVideoComponents", video=["video", 0])
        prompt["see"] = of_class("Brightness", images=["parts", 0])
    assert studio.run(prompt).status == "success"
    assert camera.decoded == ["pieces"]


def test_a_kept_stream_is_whole_for_a_node_that_asks_for_a_tensor(studio: Studio, camera: Camera) -> None:
    studio.run(prompt_of("mp4"))
    result = studio.run(prompt_of("mp4") | {"see": of_class("Brightness", images=["film", 0])})
    assert result.status == "success" and camera.decoded == ["pieces", "pieces"]


@pytest.mark.parametrize("save", ["webm", "SaveAnimatedPNG", "SaveAnimatedWEBP", "mp4"])
def test_frames_that_a_saving_node_passes_on_are_decoded_once_and_held(
    studio: Studio, camera: Camera, save: str
) -> None:
    prompt = prompt_of(save)
    passed = "save"
    if save == "mp4":
        prompt["parts"] = of_class("GetVideoComponents", video=["save", 0])
        passed = "parts"
    result = studio.run(prompt | {"see": of_class("Brightness", images=[passed, 0])})
    assert result.status == "success" and camera.decoded == ["pieces"]
    assert len(studio.files(result, "save")) == 1


@pytest.mark.parametrize("save", ["webm", "mp4"])
def test_frames_that_were_decoded_as_they_were_saved_are_passed_on_whole_later(
    studio: Studio, camera: Camera, save: str
) -> None:
    prompt = prompt_of(save)
    studio.run(prompt)
    prompt["see"] = (
        of_class("GetVideoComponents", video=["save", 0])
        if save == "mp4"
        else of_class("Brightness", images=["save", 0])
    )
    if save == "mp4":
        prompt["end"] = of_class("Brightness", images=["see", 0])
    result = studio.run(prompt)
    assert result.status == "success" and camera.decoded == ["pieces", "pieces"]


@pytest.mark.parametrize(
    ("save", "suffix"), [("webm", "webm"), ("SaveAnimatedPNG", "png"), ("SaveAnimatedWEBP", "webp")]
)
def test_a_file_whose_frames_failed_is_not_left(studio: Studio, camera: Camera, save: str, suffix: str) -> None:
    camera.fails = True
    assert studio.run(prompt_of(save)).status == "error"
    assert list(studio.settings.output_path.rglob(f"*.{suffix}")) == []
