"""OpenAI's images API with the official package, over HTTP, on modifiers that the stand-in of an engine can run."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from PIL import Image

from tests.fakes import draw, paint, running_engine
from tests.worker.running_front import RunningFront, running_front, until

KEY = "an-images-key"
SKETCH = """
workflow = "sketch.json"
[parameters.prompt]
into = "1.text"
type = "text"
[parameters.seed]
into = "1.size"
type = "integer"
default = 8
"""
REPAINT = """
workflow = "paint.json"
[parameters.prompt]
into = "1.text"
type = "text"
[parameters.input_image]
into = "1.image"
type = "file"
"""
MASKED = REPAINT + "[parameters.mask_image]\ninto = '2.image'\ntype = 'file'\n"


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    modifiers = tmp_path / "modifiers"
    modifiers.mkdir()
    both = {"1": paint()["1"], "2": paint()["1"]}
    for name, text, workflow in (("Sketch", SKETCH, draw()), ("Repaint", REPAINT, paint()), ("Masked", MASKED, both)):
        workflow_file = text.split('"')[1] if name != "Masked" else "both.json"
        (modifiers / f"{name}.toml").write_text(text.replace(text.split('"')[1], workflow_file))
        (modifiers / workflow_file).write_text(json.dumps(workflow))
    async with (
        running_engine(tmp_path) as engine,
        running_front(
            tmp_path / "base", engine, api_keys=f"shop:{KEY}", base_directory=str(modifiers.parent)
        ) as running,
    ):
        yield running


@pytest.fixture
async def client(front: RunningFront) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def image() -> bytes:
    content = io.BytesIO()
    Image.new("RGBA", (8, 8), (200, 10, 10, 128)).save(content, "PNG")
    return content.getvalue()


async def test_images_are_generated_as_data_and_as_links(client: openai.AsyncOpenAI, front: RunningFront) -> None:
    made = await client.images.generate(model="Sketch", prompt="ab", n=2, extra_body={"seed": 3})
    assert made.data is not None
    drawn = [base64.b64decode(item.b64_json or "").decode() for item in made.data]
    assert drawn == ["ababab", "abababab"]  # the seed counts up
    linked = await client.images.generate(model="Sketch", prompt="x", response_format="url")
    assert linked.data is not None and linked.data[0].url is not None and linked.data[0].b64_json is None
    assert (await front.http.get(linked.data[0].url)).text == "x" * 8


async def test_an_image_is_edited_with_and_without_a_mask(client: openai.AsyncOpenAI, front: RunningFront) -> None:
    made = await client.images.edit(model="Repaint", prompt="snow", image=("a.png", image()))
    assert made.data is not None and base64.b64decode(made.data[0].b64_json or "").startswith(b"\x89PNG")
    masked = await client.images.edit(
        model="Masked", prompt="snow", image=[("a.png", image())], mask=("m.png", image())
    )
    assert masked.data is not None and len(masked.data) == 2  # of both nodes


async def test_images_come_as_events(client: openai.AsyncOpenAI) -> None:
    stream = await client.images.generate(model="Sketch", prompt="ab", stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["image_generation.completed"]
    assert base64.b64decode(events[0].b64_json) == b"ab" * 8


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    listed = {model.id async for model in client.models.list()}
    assert {"Sketch", "Text2Image"} <= listed and not {"Text2Video", "Image2Video"} & listed


async def test_what_is_wrong_is_raised_as_openais_errors(client: openai.AsyncOpenAI, front: RunningFront) -> None:
    with pytest.raises(openai.BadRequestError) as unknown:
        await client.images.generate(model="Sketsch", prompt="x")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.images.generate(model="Sketch", prompt="x", n=11, size="big")
    assert "11" in str(wrong.value)
    with pytest.raises(openai.BadRequestError) as parameter:
        await client.images.generate(model="Sketch", prompt="x", extra_body={"sed": 1})
    assert parameter.value.param == "sed"
    with pytest.raises(openai.BadRequestError):
        await client.images.edit(model="Repaint", prompt="x", image=("a.png", b"no image"))
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.images.generate(model="Sketch", prompt="x")
    with pytest.raises(openai.BadRequestError, match="KSampler|CheckpointLoader"):
        await client.images.generate(model="gpt-image-1", prompt="x", size="1024x1024")  # the stand-in has no sampler


async def test_a_client_that_leaves_ends_its_jobs(front: RunningFront, client: openai.AsyncOpenAI) -> None:
    front.engine.seconds_to_take = 30
    with pytest.raises(openai.APITimeoutError):
        await client.images.generate(model="Sketch", prompt="x", timeout=1.0)

    async def is_over() -> bool:
        return not front.front.services.jobs.store.jobs

    await until(is_over)
