"""Workflows kept under a name: versions, named inputs, a typed route, and who may change them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from tests.fakes import FakeEngine, draw
from tests.worker.prompts.workflows.pages import node, page
from tests.worker.running_front import RunningFront, running_front

ADMIN = {"Authorization": "Bearer root"}
CUSTOMER = {"Authorization": "Bearer plain"}
STORED = {"workflow_json": draw(), "description": "A word", "inputs": {"word": "1.text", "side": {"into": ["#size"]}}}


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[RunningFront]:
    """A front whose callers all need a key."""
    keys: dict[str, Any] = {"admin_api_keys": ("root",), "api_keys": ("plain",), "trust_loopback": False}
    async with FakeEngine(tmp_path) as engine, running_front(tmp_path, engine, **keys) as running:
        yield running


async def put(front: RunningFront, name: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = await front.http.put(f"/workflows/{name}", json=body, headers=headers)
    assert response.status_code in (200, 201), response.text
    return dict(response.json())


async def test_a_stored_workflow_runs_by_its_name_with_named_inputs_and_overrides(front: RunningFront) -> None:
    stored = await put(front, "poster", STORED)
    assert (stored["version"], stored["inputs"]["side"]["into"]) == (1, ["1.size"])
    assert stored["schema"]["properties"]["side"] == {"type": "integer", "minimum": 1, "maximum": 64, "default": 8}
    body = {"input": {"workflow": "poster", "inputs": {"word": "dog", "side": 4}, "overrides": {"1.size": 5}}}
    response = await front.http.post("/generate/sync", json=body)
    assert response.status_code == 200, response.text
    expected = {"workflow": "poster@1", "overrides": {"1.text": "dog", "1.size": 5}}
    assert response.json()["parameters"] == expected
    plain = await front.http.post("/workflows/poster/run/sync", json={"word": "cat"})
    assert plain.json()["parameters"] == {"workflow": "poster@1", "overrides": {"1.text": "cat"}}
    whole = {"input": {"inputs": {"word": "cow"}, "request_id": "cow"}}
    accepted = await front.http.post("/workflows/poster@1/run", json=whole)
    assert (accepted.status_code, accepted.json()["id"]) == (202, "cow")
    await front.until("cow", "completed")
    streamed = await front.http.post("/workflows/poster/run/stream", json={})
    assert '"final_result"' in streamed.text


async def test_versions_are_kept_and_never_given_twice(front: RunningFront) -> None:
    assert (await put(front, "poster", draw("one")))["version"] == 1
    assert (await put(front, "poster", draw("two")))["version"] == 2
    again = await front.http.put("/workflows/poster", json=draw("two"))
    assert (again.status_code, again.json()["version"]) == (200, 2)
    old = (await front.http.get("/workflows/poster@1")).json()
    assert old["workflow_json"] == draw("one") and old["versions"] == [2, 1]
    assert (await front.http.delete("/workflows/poster@2")).json() == {"deleted": 1}
    assert (await front.http.get("/workflows/poster")).json()["version"] == 1
    assert (await front.http.get("/workflows/poster@2")).status_code == 404
    assert (await put(front, "poster", draw("three")))["version"] == 3
    assert (await front.http.delete("/workflows/poster")).json() == {"deleted": 2}
    assert (await front.http.get("/workflows")).json() == {"workflows": []}
    assert (await front.http.delete("/workflows/poster")).status_code == 404


async def test_a_page_gives_its_app_mode(front: RunningFront) -> None:
    document = page(node(1, "Draw", ["hello", 8]), node(2, "Say", ["said"]))
    document["extra"] = {"linearData": {"inputs": [[1, "text"]], "outputs": [1]}}
    stored = await put(front, "page", document)
    assert stored["inputs"] == {"text": {"into": ["1.text"], "description": ""}} and stored["outputs"] == ["1"]
    response = await front.http.post("/workflows/page/run/sync", json={"text": "x"})
    assert response.json()["parameters"]["overrides"] == {"1.text": "x"}


async def test_what_is_wrong_is_refused_with_its_field(front: RunningFront) -> None:
    await put(front, "poster", STORED)
    for path, body, field in (
        ("/workflows/poster/run", {"wrd": "x"}, "input.inputs.wrd"),
        ("/workflows/poster/run", {"side": 65}, "input.inputs.side"),
        ("/workflows/poster/run", {"input": {"overrides": {"1.txt": 1}}}, "input.overrides.1.txt"),
        ("/generate", {"input": {"workflow": "poster", "workflow_json": draw()}}, "input"),
    ):
        response = await front.http.post(path, json=body)
        assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, field), response.text
    for name, body, field in (
        ("bad%20name", draw(), "name"),
        ("poster", {"workflow_json": draw(), "inputs": {"word": "1.txt"}}, "inputs.word"),
        ("poster", {"workflow_json": draw(), "inputs": {"word": 5}}, "inputs.word"),
        ("poster", {"workflow": {"1": {"text": 1}}}, "workflow_json"),
        ("poster", {"workflow_json": page(node(1, "Drew", inputs=[("x", "IMAGE", 1, None)]))}, "input.workflow_json"),
    ):
        response = await front.http.put(f"/workflows/{name}", json=body)
        assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, field), response.text
    missing = await front.http.post("/generate", json={"input": {"workflow": "postr"}})
    assert missing.status_code == 404 and missing.json()["error"]["nearest"] == "poster"


async def test_each_workflow_has_a_typed_route_in_the_document(front: RunningFront) -> None:
    before = (await front.http.get("/openapi.json")).json()
    assert "/workflows/poster/run" not in before["paths"]
    await put(front, "poster", STORED)
    document = (await front.http.get("/openapi.json")).json()
    path = "/workflows/poster/run"
    validate(document | {"paths": {path: document["paths"][path]}})  # `test_openapi.py` validates the others
    operation = document["paths"][path]["post"]
    inputs, whole = operation["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    schema = document["components"]["schemas"][inputs["$ref"].rpartition("/")[2]]
    assert schema["properties"]["word"] == {"type": "string", "default": "hello"}
    assert whole["properties"]["input"]["properties"]["inputs"] == inputs
    await front.http.delete("/workflows/poster")
    assert "/workflows/poster/run" not in (await front.http.get("/openapi.json")).json()["paths"]


async def test_only_an_operator_changes_workflows_and_sees_them(keyed: RunningFront) -> None:
    refused = await keyed.http.put("/workflows/poster", json=STORED, headers=CUSTOMER)
    assert refused.status_code == 403
    await put(keyed, "poster", STORED, **ADMIN)
    seen = (await keyed.http.get("/workflows/poster", headers=CUSTOMER)).json()
    assert seen["schema"]["properties"].keys() == {"word", "side"} and "workflow_json" not in seen
    assert (await keyed.http.delete("/workflows/poster", headers=CUSTOMER)).status_code == 403
    run = await keyed.http.post("/workflows/poster/run/sync", json={"word": "x"}, headers=CUSTOMER)
    assert run.status_code == 200
    assert (await keyed.http.get("/workflows")).status_code == 401
    assert "poster" in (await keyed.http.get("/openapi.json", headers=CUSTOMER)).text
    assert "poster" not in (await keyed.http.get("/openapi.json")).text
    body = {"input": {"workflow": "poster", "request_id": "run"}}
    assert (await keyed.http.post("/generate/sync", json=body, headers=CUSTOMER)).status_code == 200
    for headers, status in ((CUSTOMER, 403), (ADMIN, 200)):
        shown = await keyed.http.get("/api/v2/jobs/run/workflow", headers=headers)
        assert shown.status_code == status, shown.text


async def test_a_stored_workflow_is_there_after_a_restart(tmp_path: Path) -> None:
    async with FakeEngine(tmp_path) as engine:
        async with running_front(tmp_path, engine) as front:
            await put(front, "poster", STORED)
        async with running_front(tmp_path, engine) as front:
            response = await front.http.post("/workflows/poster/run/sync", json={"word": "x"})
            assert response.json()["parameters"]["workflow"] == "poster@1"
