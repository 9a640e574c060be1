"""The API's document: whole, and every example in it gives an image when it is sent."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.flow.running_worker import RunningWorker


def document_of(worker: RunningWorker) -> dict[str, Any]:
    document: dict[str, Any] = worker.get("/openapi.json").json()
    return document


def references_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from references_in(item)


def test_every_route_is_there_and_every_reference_leads_somewhere(studio: RunningWorker) -> None:
    document = document_of(studio)
    assert {"/generate", "/generate/sync", "/generate/stream", "/stream/{job_id}", "/result/{job_id}"} <= set(
        document["paths"]
    )
    for reference in references_in(document):
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    assert "priority" in document["components"]["schemas"]["GenerateInput"]["properties"]


def with_steps(request: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """The same request with so many sampling steps wherever it says how many."""

    def changed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: num_steps if key in ("steps", "hires_steps") else changed(item) for key, item in value.items()}

    small: dict[str, Any] = changed(request)
    return small


@pytest.mark.parametrize("num_steps", [1, pytest.param(None, marks=pytest.mark.slow, id="as it stands")])
def test_every_example_gives_an_image(studio: RunningWorker, num_steps: int | None) -> None:
    content = document_of(studio)["paths"]["/generate/sync"]["post"]["requestBody"]["content"]
    examples = content["application/json"]["examples"]
    built_in = {"Text2Image", "Image2Image", "Inpaint", "ControlNet", "LoraText2Image", "HiresFix", "Upscale"}
    assert set(examples) == {*built_in, "RawWorkflow", "Poster", "A workflow of your own"}
    with httpx.Client(timeout=100) as http:
        for name, example in examples.items():
            request = example["value"] if num_steps is None else with_steps(example["value"], num_steps)
            response = http.post(f"{studio.url}/generate/sync", json=request)
            assert response.status_code == 200, (name, response.text)
            assert Image.open(io.BytesIO(http.get(response.json()["output"][0]["url"]).content)).format == "PNG"


def test_without_the_files_of_a_modifier_there_is_no_example_of_it(worker: RunningWorker) -> None:
    content = document_of(worker)["paths"]["/generate"]["post"]["requestBody"]["content"]
    assert "ControlNet" not in content["application/json"]["examples"]
    assert "Text2Image" in content["application/json"]["examples"]


def test_the_pages_are_there(worker: RunningWorker) -> None:
    assert "openapi.json" in worker.get("/docs").text
    page = worker.get("/")
    assert page.headers["content-type"].startswith("text/html")
    scripts = re.findall(r'src="(page/[^"]+\.js)"', page.text)
    assert scripts and all("javascript" in worker.get(f"/{path}").headers["content-type"] for path in scripts)
