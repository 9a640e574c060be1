"""Pages as requests: POST /convert, and `workflow_json` of the generate routes."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from darkroom.worker.api.workflow_bodies import while_connected
from tests.fakes import draw
from tests.worker.prompts.workflows.pages import node, page
from tests.worker.prompts.workflows.test_media import png
from tests.worker.running_front import RunningFront

PAGE = page(node(1, "Draw", ["hello", 8]))


async def test_a_page_runs_as_its_prompt_does_and_goes_into_the_images(front: RunningFront) -> None:
    response = await front.sync(PAGE)
    assert response.status_code == 200 and response.json()["output"], response.text
    waiting = page(node(1, "Wait", [60.0]))
    await front.http.post("/generate", json={"input": {"workflow_json": waiting, "request_id": "page"}})
    job = front.front.services.jobs.store.jobs["page"]
    assert dict(job.prompt) == {"1": {"class_type": "Wait", "inputs": {"seconds": 60.0}, "_meta": {"title": "Wait"}}}
    assert job.request.extra["extra_pnginfo"] == {"workflow": waiting}
    await front.http.post("/cancel/page")


async def test_convert_returns_the_prompt_and_runs_nothing(front: RunningFront) -> None:
    bodies: list[dict[str, Any]] = [PAGE, {"workflow_json": PAGE}, {"input": {"workflow_json": PAGE}}]
    for body in bodies:
        response = await front.http.post("/convert", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["workflow_json"]["1"]["inputs"] == {"text": "hello", "size": 8}
    assert (await front.http.post("/convert", json=draw())).json() == {"workflow_json": draw()}
    assert front.engine.runs == []


async def test_an_image_with_a_workflow_is_one(front: RunningFront) -> None:
    encoded = base64.b64encode(png(b"tEXt")).decode()
    response = await front.http.post("/convert", json={"workflow_json": encoded})
    assert response.json()["workflow_json"]["1"]["class_type"] == "Save"


async def test_what_cannot_be_converted_is_refused_with_its_field_and_node(front: RunningFront) -> None:
    unknown = node(2, "Drew", inputs=[("x", "IMAGE", 1, None)])
    for path, body in (("/convert", page(unknown)), ("/generate", {"input": {"workflow_json": page(unknown)}})):
        response = await front.http.post(path, json=body)
        (problem,) = response.json()["error"]["problems"]
        assert response.status_code == 422
        assert (problem["node_id"], problem["type"], problem["class_type"]) == ("2", "unknown_class", "Drew")
    for wrong in ({"workflow_json": "text"}, {"workflow_json": 5}, {}):
        response = await front.http.post("/convert", json=wrong)
        assert response.status_code == 422
        assert response.json()["error"]["problems"][0]["field"] == "workflow_json"


async def test_work_on_a_body_ends_with_its_client() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def receive() -> dict[str, str]:
        await begun.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        await while_connected(Request({"type": "http"}, receive), work())
    assert ended.is_set()
