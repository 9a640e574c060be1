"""The document of the API: names, declared replies and errors, and that real replies have the declared form."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from darkroom.worker.version import version
from tests.fakes import draw, fail
from tests.worker.receiver import Receiver
from tests.worker.running_front import RunningFront

OPEN_FORMS = frozenset({"ErrorEntry", "ProblemEntry", "Benchmark"})
"""Objects whose fields depend on the error or on the benchmark that was run."""

Json = dict[str, Any]


@pytest.fixture
async def document(front: RunningFront) -> Json:
    found: Json = (await front.http.get("/openapi.json")).json()
    return found


def operations_of(document: Json) -> dict[tuple[str, str], Json]:
    return {
        (method, path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def undeclared(value: Any, schema: Json, document: Json, name: str = "") -> list[str]:
    """Fields of a reply that its schema does not name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return undeclared(value, document["components"]["schemas"][name], document, name)
    for choice in schema.get("anyOf", ()):
        if "$ref" in choice and isinstance(value, dict):
            return undeclared(value, choice, document)
    if isinstance(value, list):
        return [found for item in value for found in undeclared(item, schema.get("items", {}), document, name)]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None or name in OPEN_FORMS:
        return []
    found = [f"{name}.{key}" for key in value if key not in properties]
    for key in value.keys() & properties.keys():
        found += undeclared(value[key], properties[key], document, name)
    return found


def assert_as_declared(reply: httpx.Response, method: str, path: str, document: Json) -> None:
    declared = document["paths"][path][method]["responses"]
    assert str(reply.status_code) in declared, (path, reply.status_code, reply.text)
    schema = declared[str(reply.status_code)]["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    assert not list(Draft202012Validator(whole).iter_errors(reply.json()))
    assert not undeclared(reply.json(), schema, document)


async def test_the_document_is_valid_and_has_the_program_s_version(document: Json) -> None:
    validate(document)
    assert document["info"]["version"] == version()


async def test_every_operation_has_a_short_name_of_its_own_a_tag_and_a_summary(document: Json) -> None:
    operations = operations_of(document)
    names = [operation["operationId"] for operation in operations.values()]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", name) for name in names)
    known = {tag["name"] for tag in document["tags"]}
    assert all(operation["tags"] and set(operation["tags"]) <= known for operation in operations.values())
    assert all(operation.get("summary") and operation.get("description") for operation in operations.values())


async def test_every_error_has_the_form_of_a_result_and_none_is_the_framework_s(document: Json) -> None:
    assert not [name for name in document["components"]["schemas"] if "Validation" in name]
    forms = {
        "Result",
        "Health",
        "Readiness",
        "RunPodStatus",
        "RunPodError",
        "OpenAiError",
        "ComfyError",
        "CloudRefusal",
    }
    for (_, path), operation in operations_of(document).items():
        for code, reply in operation["responses"].items():
            if int(code) >= 400:
                schema = reply["content"]["application/json"]["schema"]
                assert schema["$ref"].rpartition("/")[2] in forms, (path, code)
            assert code == "204" or reply["content"], (path, code)


async def test_routes_that_need_a_key_declare_its_refusal_and_late_ones_when_to_return(document: Json) -> None:
    assert (
        document["components"]["securitySchemes"]["key"]["scheme"] == "bearer" and {"key": []} in document["security"]
    )
    for path in ("/generate", "/generate/sync", "/generate/stream", "/run", "/runsync"):
        replies = document["paths"][path]["post"]["responses"]
        assert {"401", "403", "409", "413", "422", "429", "500", "502", "503"} <= set(replies)
        assert "Retry-After" in replies["429"]["headers"] and "Retry-After" in replies["503"]["headers"]


async def test_streams_are_declared_as_event_streams(document: Json) -> None:
    for method, path in (("post", "/generate/stream"), ("get", "/stream/{job_id}")):
        assert list(document["paths"][path][method]["responses"]["200"]["content"]) == ["text/event-stream"]
    assert "progress" in document["components"]["schemas"]["StreamEvent"]["properties"]


async def test_replies_of_jobs_have_the_declared_form(front: RunningFront, document: Json) -> None:
    def check(reply: httpx.Response, method: str, path: str) -> None:
        assert_as_declared(reply, method, path, document)

    body = {"input": {"workflow_json": draw(), "return_outputs_as_base64": True, "output": {"thumbnail_size": 64}}}
    check(await front.http.post("/generate/sync", json=body), "post", "/generate/sync")
    check(await front.http.post("/generate", json={"input": {"workflow_json": draw()}}), "post", "/generate")
    check(await front.sync({"1": {"class_type": "None"}}), "post", "/generate/sync")
    failed = await front.sync(fail(), request_id="broken")
    check(failed, "post", "/generate/sync")
    check(await front.http.get("/result/broken"), "get", "/result/{job_id}")
    check(await front.http.get("/result/nothing"), "get", "/result/{job_id}")
    check(await front.http.post("/cancel/broken"), "post", "/cancel/{job_id}")
    check(await front.http.get("/queue-info"), "get", "/queue-info")
    check(await front.http.get("/jobs"), "get", "/jobs")
    check(await front.http.delete("/jobs/broken"), "delete", "/jobs/{job_id}")
    check(await front.http.delete("/jobs/broken"), "delete", "/jobs/{job_id}")
    check(await front.http.post("/runsync", json={"input": {"workflow_json": draw()}}), "post", "/runsync")
    check(await front.http.get("/status/broken"), "get", "/status/{job_id}")
    check(await front.http.get("/status/nothing"), "get", "/status/{job_id}")


async def test_replies_about_the_worker_have_the_declared_form(
    front: RunningFront, document: Json, receiver: Receiver
) -> None:
    for path in ("/live", "/ready", "/health", "/modifiers", "/benchmark", "/webhooks"):
        assert_as_declared(await front.http.get(path), "get", path, document)
    tested = await front.http.post("/webhooks/test", json={"url": receiver.url})
    assert_as_declared(tested, "post", "/webhooks/test", document)
    assert_as_declared(await front.http.post("/webhooks/redeliver"), "post", "/webhooks/redeliver", document)
    unknown = await front.http.post("/webhooks/none/redeliver")
    assert_as_declared(unknown, "post", "/webhooks/{webhook_id}/redeliver", document)
