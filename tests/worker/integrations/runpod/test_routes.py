"""RunPod's own routes on the front, over sockets, with the fake engine."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.worker.app.application import create_app
from tests.fakes import draw, fail, running_engine, wait
from tests.worker.running_front import RunningFront, running_front, until


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    async with running_engine(tmp_path) as engine, running_front(tmp_path, engine) as running:
        yield running


async def post(front: RunningFront, route: str, job_input: Any) -> httpx.Response:
    return await front.http.post(route, json={"input": job_input})


async def test_worker_comfyuis_requests_get_its_replies(front: RunningFront) -> None:
    done = (await post(front, "/runsync", {"workflow": draw("hello")})).json()
    assert done["status"] == "COMPLETED" and done["executionTime"] >= 0
    (image,) = done["output"]["images"]
    assert image["type"] == "base64" and base64.b64decode(image["data"]) == b"hello" * 8
    assert (await front.http.get(f"/status/{done['id']}")).json() == done


async def test_our_own_input_gets_our_own_result(front: RunningFront) -> None:
    done = (await post(front, "/runsync", {"workflow_json": draw("hello")})).json()
    assert done["output"]["status"] == "completed" and done["output"]["output"][0]["data"]


async def test_a_job_is_in_progress_until_it_is_cancelled(front: RunningFront) -> None:
    taken = (await post(front, "/run", {"workflow": wait()})).json()
    assert taken["status"] in ("IN_QUEUE", "IN_PROGRESS")

    async def is_in_progress() -> bool:
        return bool((await front.http.get(f"/status/{taken['id']}")).json()["status"] == "IN_PROGRESS")

    await until(is_in_progress)
    await front.http.post(f"/cancel/{taken['id']}")
    assert (await front.http.get(f"/status/{taken['id']}")).json()["status"] == "CANCELLED"


async def test_runsync_answers_after_the_wait_that_was_asked_for(front: RunningFront) -> None:
    taken = (await front.http.post("/runsync?wait=1000", json={"input": {"workflow": wait()}})).json()
    assert taken["status"] == "IN_PROGRESS" and "output" not in taken


async def test_what_goes_wrong_is_reported_in_its_words(front: RunningFront) -> None:
    failed = (await post(front, "/runsync", {"workflow": fail()})).json()
    assert (failed["status"], failed["error"]) == ("FAILED", "Job processing failed")
    assert failed["output"]["details"] == ["Workflow execution error: Node Type: Fail, Node ID: 1, Message: it broke"]
    refused = await post(front, "/runsync", {"workflow": {"1": {"class_type": "Nope", "inputs": {}}}})
    assert refused.status_code == 422 and "Nope" in refused.text
    for nothing, words in (({}, "Missing 'workflow' parameter"), (5, "Please provide input"), ("{", "Invalid JSON")):
        empty = await post(front, "/run", nothing)
        assert (empty.status_code, empty.json()["error"][: len(words)]) == (422, words)
    assert (await front.http.get("/status/nosuch")).status_code == 404


async def test_a_key_is_asked_for_as_everywhere(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine, running_front(tmp_path, engine, api_keys=("key",)) as front:
        app = create_app(front.front.services)
        transport = httpx.ASGITransport(app=app, client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://elsewhere") as http:
            body = {"input": {"workflow": draw()}}
            for route in ("/run", "/runsync"):
                assert (await http.post(route, json=body)).status_code == 401
            assert (await http.get("/status/any")).status_code == 401
            allowed = await http.post("/runsync", json=body, headers={"Authorization": "Bearer key"})
            assert allowed.json()["status"] == "COMPLETED"


async def test_a_host_that_is_none_is_refused(tmp_path: Path) -> None:
    body = {"input": {"workflow": draw()}}
    async with running_engine(tmp_path) as engine, running_front(tmp_path, engine, api_keys=("key",)) as front:
        for host in ("999.1.1.1", "[v1.x]", "xn--a"):
            headers = {"Host": host, "Authorization": "Bearer key"}
            reply = await front.http.post("/run", json=body, headers=headers)
            assert reply.status_code == 422 and "Host" in reply.text, host
