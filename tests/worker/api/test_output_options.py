"""`output` of a request: images as it wants them, refused when it cannot be had."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from darkroom.worker.api.schemas import parse_generate
from darkroom.worker.errors import RequestRejected
from darkroom.worker.storage.job import JobState
from tests.fakes import FakeEngine, draw, paint, say
from tests.worker.running_front import RunningFront, running_front


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    folder = tmp_path / "engine"
    folder.mkdir()
    async with FakeEngine(folder) as engine, running_front(tmp_path, engine) as running:
        yield running


async def only_output(front: RunningFront, **fields: Any) -> dict[str, Any]:
    answer = await front.sync(paint(), **fields)
    assert answer.status_code == 200, answer.text
    [output] = answer.json()["output"]
    return dict(output)


async def test_an_image_comes_in_the_format_that_was_asked_for_by_link_and_as_data(front: RunningFront) -> None:
    wishes = {"format": "webp", "quality": 70, "thumbnail_size": 16}
    output = await only_output(front, output=wishes, return_outputs_as_base64=True)
    assert output["filename"].endswith(".webp") and output["mimetype"] == "image/webp"
    for item in (output, output["thumbnail"]):
        fetched = await front.http.get(item["url"])
        assert (
            fetched.headers["content-type"] == "image/webp" and fetched.headers["x-content-type-options"] == "nosniff"
        )
        assert fetched.content == base64.b64decode(item["data"])
        assert Image.open(io.BytesIO(fetched.content)).format == "WEBP"
    assert not {"path", "media_type", "size_bytes"} & (set(output) | set(output["thumbnail"]))


async def test_the_same_wish_is_kept_over_result_and_replay(front: RunningFront) -> None:
    output = await only_output(front, request_id="one", output={"format": "jpg"})
    again = (await front.http.get("/result/one")).json()["output"][0]
    assert output["filename"] == again["filename"] and output["filename"].endswith(".jpg")


async def test_the_prompt_stands_in_the_image_only_when_asked_for(front: RunningFront) -> None:
    workflow = {"nodes": ["of the client"]}

    async def said(level: str) -> dict[str, Any]:
        fields = {"output": {"metadata": level}, "extra_data": {"extra_pnginfo": {"workflow": workflow}}}
        output = await only_output(front, **fields)
        image = Image.open(io.BytesIO((await front.http.get(output["url"])).content))
        image.load()
        return {str(key): value for key, value in image.info.items()}

    assert await said("none") == {}
    assert set(await said("prompt")) == {"prompt"}
    full = await said("full")
    assert "hello" in full["prompt"] and "of the client" in full["workflow"]


async def test_a_text_is_an_output_with_the_text_in_it(front: RunningFront) -> None:
    answer = await front.sync(say("a caption"), return_outputs_as_base64=True)
    [output] = answer.json()["output"]
    assert (output["type"], output["text"], output["node_id"]) == ("text", "a caption", "1") and "url" not in output


async def test_no_output_is_shown_before_it_is_as_the_request_wants_it(front: RunningFront) -> None:
    await front.sync(paint(), request_id="one", output={"format": "webp"})
    job = await front.front.store.find("one")
    assert job is not None and job.outputs
    job.state = JobState.GENERATED
    assert (await front.http.get("/result/one")).json()["output"] == []


@pytest.mark.parametrize(
    ("wishes", "field", "allowed"),
    [
        ({"format": "heic"}, "input.output.format", "'png', 'jpeg', 'webp' or 'avif'"),
        ({"format": "webp", "quality": 0}, "input.output.quality", "1"),
        ({"format": "webp", "quality": 101}, "input.output.quality", "100"),
        ({"format": "png", "quality": 50}, "input.output", "jpeg, webp or avif"),
        ({"metadata": "some"}, "input.output.metadata", "'none', 'prompt' or 'full'"),
        ({"thumbnail_size": 5}, "input.output.thumbnail_size", "16"),
        ({"fromat": "webp"}, "input.output.fromat", "format"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_what_can(wishes: dict[str, Any], field: str, allowed: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        parse_generate({"input": {"workflow_json": draw(), "output": wishes}})
    [problem] = caught.value.problems
    assert problem.field == field and allowed in str(problem.as_json())
