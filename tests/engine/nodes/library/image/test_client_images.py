"""Images sent to the client, taken by its camera, and vector images."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from darkroom.engine.events import NodeProgress, PreviewMade
from darkroom.engine.images.svg import Svg
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.svg import with_metadata
from darkroom.engine.nodes.sockets import SVG
from tests.engine.nodes.library.media.studio import Studio, of_class


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    studio = Studio(tmp_path)
    yield studio
    studio.engine.close()


def sending(color: int = 0x102030) -> dict[str, dict[str, object]]:
    return {
        "made": of_class("EmptyImage", width=640, height=32, batch_size=2, color=color),
        "send": of_class("SaveImageWebsocket", images=["made", 0]),
    }


def test_images_are_sent_at_full_size_without_loss(studio: Studio) -> None:
    result = studio.run(sending(), wants_previews=True)
    sent = [event for event in studio.events if isinstance(event, PreviewMade)]
    assert result.status == "success" and len(sent) == 2
    image = Image.open(io.BytesIO(sent[0].image))
    assert (image.format, image.size, image.getpixel((639, 31))) == ("PNG", (640, 32), (0x10, 0x20, 0x30))
    progress = [(event.value, event.maximum) for event in studio.events if isinstance(event, NodeProgress)]
    assert progress == [(0, 2), (1, 2)]
    assert not list(studio.settings.output_path.rglob("*.*"))


def test_the_same_images_are_sent_to_the_next_client_too(studio: Studio) -> None:
    for _ in range(2):
        studio.run(sending(), wants_previews=True)
        assert sum(isinstance(event, PreviewMade) for event in studio.events) == 2


def test_without_a_client_nothing_is_sent(studio: Studio) -> None:
    assert studio.run(sending()).status == "success"
    assert not [event for event in studio.events if isinstance(event, PreviewMade)]


def test_a_captured_image_is_loaded(studio: Studio) -> None:
    Image.new("RGB", (16, 8), (255, 0, 0)).save(studio.settings.input_path / "webcam.png")
    result = studio.run(
        {
            "camera": of_class("WebcamCapture", image="webcam.png", width=0, height=0, capture_on_queue=True),
            "show": of_class("PreviewImage", images=["camera", 0]),
        }
    )
    [path] = studio.files(result, "show")
    assert Image.open(path).size == (16, 8)


@node("Drawing", category="test")
def drawing(context: NodeContext) -> SVG:
    one = Svg([io.BytesIO(b'<svg width="4" xmlns="http://www.w3.org/2000/svg"><rect/></svg>')])
    return Svg.combine_all([one.combine(one), one])


def test_drawings_are_saved_with_their_prompt(studio: Studio) -> None:
    studio.engine.catalogue.add(drawing)
    result = studio.run(
        {"draw": of_class("Drawing"), "save": of_class("SaveSVGNode", svg=["draw", 0], filename_prefix="svg/x")}
    )
    paths = studio.files(result, "save")
    assert [path.name for path in paths] == ["x_00001_.svg", "x_00002_.svg", "x_00003_.svg"]
    text = paths[0].read_text("utf-8")
    assert json.loads(text.partition("<![CDATA[")[2].partition("]]>")[0])["prompt"]["draw"]["class_type"] == "Drawing"
    assert text.endswith("<rect/></svg>")


def test_a_text_cannot_end_its_section() -> None:
    assert (
        with_metadata("<svg>", "a]]><script/>") == "<svg>\n<metadata><![CDATA[a]]]]><![CDATA[><script/>]]></metadata>"
    )


def test_a_document_without_an_open_root_stays_as_it_is() -> None:
    assert with_metadata("<svg/>", "text") == "<svg/>"
