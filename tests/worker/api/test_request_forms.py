"""Requests as other tools send them: opened, or refused by the name of what they look like, on every route."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from darkroom.worker.api import deliveries, schemas, webhooks
from darkroom.worker.api.request_forms import open_request
from darkroom.worker.api.schemas import GenerateInput, parse_generate
from darkroom.worker.errors import RequestRejected
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.integrations.openai.form import read_order
from darkroom.worker.json.request_model import RequestModel
from darkroom.worker.outputs.targets.s3 import S3Input
from darkroom.worker.settings.listener import JsonLimits
from tests.fakes import draw
from tests.worker.running_front import RunningFront

Json = dict[str, Any]
LIMITS = JsonLimits()
PROMPT = draw()
PAGE: Json = {"nodes": [{"id": 1, "type": "Draw", "widgets_values": ["a"]}], "links": [], "version": 0.4}
TEXT = json.dumps(PROMPT)
INPUT = {"workflow_json": PROMPT}

FORMS: dict[str, Json] = {
    "our own": {"input": INPUT},
    "worker-comfyui's": {"input": {"workflow": PROMPT, "images": []}},
    "worker-comfyui's with null images": {"input": {"workflow": PROMPT, "images": None, "comfy_org_api_key": None}},
    "ComfyUI's": {"prompt": PROMPT, "client_id": "a", "extra_data": {"extra_pnginfo": {"workflow": PAGE}}},
    "a bare workflow field": {"workflow": PROMPT},
    "a bare workflow_json": {"workflow_json": PROMPT},
    "the workflow itself": PROMPT,
    "the workflow as input": {"input": PROMPT},
    "comfyui-api's": {"input": {"prompt": PROMPT}},
    "input as text": {"input": json.dumps(INPUT)},
    "prompt as text": {"prompt": TEXT},
    "workflow as text": {"input": {"workflow": TEXT}},
    "workflow_json as text": {"input": {"workflow_json": TEXT}},
    "workflow_json as a file": {"input": {"workflow_json": base64.b64encode(TEXT.encode()).decode()}},
    "body in body": {"body": {"input": INPUT}},
    "data of a client": {"data": {"input": INPUT}},
    "json of a client": {"json": {"input": INPUT}},
    "body as text": {"body": json.dumps({"input": INPUT})},
    "input in input": {"input": {"input": INPUT}},
    "input in data in input": {"input": {"data": {"input": INPUT}}},
    "ComfyUI's in a body": {"body": {"prompt": PROMPT}},
    "what the page exports": {"output": PROMPT, "workflow": PAGE},
    "what the page exports, as the workflow": {"input": {"workflow_json": {"output": PROMPT, "workflow": PAGE}}},
    "ComfyUI's body as the workflow": {"input": {"workflow_json": {"prompt": PROMPT}}},
    "metadata of an image": {"input": {"workflow_json": {"prompt": TEXT, "workflow": json.dumps(PAGE)}}},
}


@pytest.mark.parametrize("name", FORMS)
def test_every_known_form_is_the_same_request(name: str) -> None:
    opened = open_request(FORMS[name], FoundJson(LIMITS))
    given = parse_generate(opened)
    assert given.workflow_json == PROMPT
    assert not (opened["input"].keys() - {"workflow_json", "extra_data"})


@pytest.mark.parametrize("name", ["ComfyUI's", "what the page exports", "metadata of an image"])
def test_the_pages_file_beside_a_prompt_goes_into_the_images(name: str) -> None:
    given = parse_generate(open_request(FORMS[name], FoundJson(LIMITS)))
    assert given.extra_data is not None and given.extra_data.extra_pnginfo == {"workflow": PAGE}


def test_the_page_in_place_of_the_prompt_is_a_workflow_too() -> None:
    for body in ({"prompt": PAGE}, {"input": {"workflow": PAGE}}, PAGE, {"extra_pnginfo": {"workflow": PAGE}}):
        assert parse_generate(open_request(body, FoundJson(LIMITS))).workflow_json == PAGE


def test_images_sent_along_are_those_of_the_workflow() -> None:
    prompt = {"1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}}}
    images = [{"name": "cat.png", "image": "aGk="}, {"name": "dog.png", "image": "https://example.org/dog.png"}]
    opened = open_request({"input": {"workflow": prompt, "images": images}}, FoundJson(LIMITS))
    assert opened["input"] == {
        "workflow_json": {"1": {"class_type": "LoadImage", "inputs": {"image": "data:image/png;base64,aGk="}}}
    }
    images[0]["name"] = "dog.png"
    with pytest.raises(RequestRejected) as refused:
        open_request({"input": {"workflow": prompt, "images": [{"name": "cat.png", "image": "?"}]}}, FoundJson(LIMITS))
    assert refused.value.problems[0].field == "input.images"


def test_the_fields_of_other_requests_stay_as_they_are() -> None:
    for body in (
        {"input": {"modifier": "Text2Image", "modifications": {"prompt": "a cat"}}},
        {"input": {"workflow": "poster@3", "inputs": {"prompt": "a cat"}}},
        {"input": {**INPUT, "webhook": {"url": "https://example.org"}, "metadata": {"body": {"a": 1}}}},
    ):
        assert open_request(body, FoundJson(LIMITS)) == body
    assert open_request({"modifier": "Text2Image"}, FoundJson(LIMITS)) == {"input": {"modifier": "Text2Image"}}


def test_a_text_within_a_body_is_held_to_the_limits_of_bodies() -> None:
    deep = '{"a": ' + "[" * 200 + "]" * 200 + "}"
    for body in ({"input": deep}, {"input": {"workflow_json": deep}}, {"body": deep}, {"prompt": deep}):
        with pytest.raises(RequestRejected, match="nested too deeply"):
            open_request(body, FoundJson(LIMITS))


JUNK: list[tuple[object, str]] = [
    ([], "an empty list"),
    ([1, 2], "a list of 2"),
    (5, "a number"),
    (True, "true"),
    ({}, "an empty object"),
    ("hello", "is text"),
    ({"openapi": "3.1.0", "paths": {}}, "an OpenAPI document"),
    ({"name": "a", "version": "1", "dependencies": {"b": "1"}}, "a package.json"),
    ({"prompt": "a cat", "negative_prompt": "", "sampler_name": "Euler", "cfg_scale": 7}, "AUTOMATIC1111"),
    ({"id": "a", "nodes": {"b": {"type": "noise", "id": "b"}}, "edges": []}, "InvokeAI"),
    ({"nodes": [{"id": "a", "type": "invocation"}], "edges": []}, "InvokeAI"),
    ({"nodes": [{"name": "Webhook", "parameters": {}}], "connections": {}}, "n8n"),
    ("<!DOCTYPE html><html></html>", "a web page"),
    ("version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
    ({"Draw": {"input": {}, "output": [], "category": "a"}}, "object_info"),
    ({"a": 1, "b": {"c": 2}}, "an object with a, b"),
]


@pytest.mark.parametrize(("junk", "words"), JUNK)
async def test_what_is_no_workflow_is_named_on_every_route(front: RunningFront, junk: object, words: str) -> None:
    routes = {
        "/convert": {"workflow_json": junk},
        "/plan": {"workflow_json": junk},
        "/generate": {"input": {"workflow_json": junk}},
        "/generate/sync": {"input": {"workflow_json": junk}},
        "/workflows/a": {"workflow_json": junk},
        "/api/prompt": {"prompt": junk},
        "/api/v2/jobs": {"workflow": junk},
        "/runsync": {"input": {"workflow": junk}},
    }
    for path, body in routes.items():
        reply = await front.http.request("PUT" if path.startswith("/workflows") else "POST", path, json=body)
        assert reply.status_code in (400, 422), (path, reply.status_code, reply.text)
        words_here = "the text" if path == "/runsync" and words == "is text" else words
        assert words_here in reply.text, (path, reply.text)
        if not isinstance(junk, str):
            assert "expected a workflow in API format" in reply.text, (path, reply.text)
    if isinstance(junk, dict) and junk:
        for path in ("/convert", "/plan", "/generate", "/api/prompt"):
            reply = await front.http.post(path, json=junk)
            assert reply.status_code in (400, 422), (path, reply.status_code, reply.text)


async def test_forms_run_on_every_route_that_takes_jobs(front: RunningFront) -> None:
    for path in ("/generate/sync", "/runsync"):
        for name in ("worker-comfyui's", "comfyui-api's", "workflow as text", "input as text", "our own"):
            reply = await front.http.post(path, json=FORMS[name])
            assert reply.status_code == 200, (path, name, reply.text)
            assert reply.json()["status"].lower() == "completed", (path, name, reply.text)
    for name in FORMS:
        reply = await front.http.post("/convert", json=FORMS[name])
        assert (reply.status_code, reply.json().get("workflow_json")) == (200, PROMPT), (name, reply.text)
        for again in (json.dumps(FORMS[name]), [FORMS[name]]):
            reply = await front.http.post("/generate/sync", content=json.dumps(again))
            assert reply.status_code == 200, (name, reply.text)
    assert (await front.http.post("/api/prompt", json={"input": {"prompt": PROMPT}})).status_code == 200


async def test_a_text_where_a_workflow_goes_names_the_modifier(front: RunningFront) -> None:
    reply = await front.http.post("/generate", json={"input": {"prompt": "a cat"}})
    assert reply.status_code == 422 and '"modifier": "Text2Image"' in reply.json()["message"]


# null


def models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def request_models() -> list[type[BaseModel]]:
    """The models of all bodies, those within others too."""
    found: list[type[BaseModel]] = [schemas.GenerateRequest, webhooks.Redelivery, webhooks.ReceiverTest]
    found.append(deliveries.DeliveryInput)
    for model in found:
        for field in model.model_fields.values():
            found += [inner for inner in models_in(field.annotation) if inner not in found]
    return found


LEAST: Mapping[str, Json] = {
    "GenerateRequest": {"input": INPUT},
    "GenerateInput": INPUT,
    "HubInput": {"repo": "a/b"},
    "PutInput": {"url": "https://example.org/{key}"},
}


@pytest.mark.parametrize("model", request_models())
def test_null_is_left_out_for_every_optional_field(model: type[BaseModel]) -> None:
    assert issubclass(model, RequestModel)
    least = LEAST.get(model.__name__, {})
    optional = [name for name, field in model.model_fields.items() if not field.is_required() and name not in least]
    without = model.model_validate(least)
    for name in optional:
        assert model.model_validate({**least, name: None}) == without, name
    assert model.model_validate({**least, **dict.fromkeys(optional)}) == without


async def test_null_is_left_out_on_every_route(front: RunningFront) -> None:
    document = (await front.http.get("/openapi.json")).json()
    fields = dict.fromkeys(name for name in GenerateInput.model_fields if name != "workflow_json")
    nested = {
        "s3": dict.fromkeys(S3Input.model_fields),
        "webhook": dict.fromkeys(schemas.WebhookInput.model_fields),
        "output": dict.fromkeys(schemas.OutputInput.model_fields),
        "extra_data": {"extra_pnginfo": None},
        "download_headers": {"https://example.org/": {"authorization": None}},
        "overrides": {"1.text": None},
    }
    for given in (fields, {**fields, **nested}):
        body = {"input": {**given, "workflow_json": PROMPT}, "more": None}
        assert (await front.http.post("/generate/sync", json=body)).status_code == 200
        assert (await front.http.post("/runsync", json=body)).json()["status"] == "COMPLETED"
        reply = await front.http.post("/generate/batch", json={"inputs": [body["input"]]})
        assert reply.json()["results"][0]["status"] != "failed", reply.text
    cloud = {"prompt": PROMPT, **dict.fromkeys(("extra_data", "client_id", "prompt_id", "number", "front"))}
    assert (await front.http.post("/api/prompt", json=cloud)).status_code == 200
    comfy = {"workflow": PROMPT, **dict.fromkeys(("extra_data", "metadata"))}
    assert (await front.http.post("/api/v2/jobs", json=comfy)).status_code == 201
    stored = {"workflow_json": PROMPT, "description": None, "inputs": None}
    assert (await front.http.put("/workflows/a", json=stored)).status_code == 201
    assert (await front.http.post("/workflows/a/run/sync", json={"anything": None})).status_code == 200
    for path in ("/webhooks/test", "/webhooks/redeliver"):
        reply = await front.http.post(path, json={"url": None, "secret": None, "timeout": None})
        assert reply.status_code in (200, 422) and "valid string" not in reply.text
    openai = document["paths"]["/v1/images/generations"]["post"]["requestBody"]["content"]["application/json"]
    optional = dict.fromkeys(name for name in openai["schema"]["properties"] if name != "prompt")
    assert len(optional) > 5
    least = {"prompt": "a cat"}
    assert read_order({**least, **optional}, ["Text2Image"], []) == read_order(least, ["Text2Image"], [])


@pytest.mark.parametrize("field", ["timeout", "priority", "expires", "deadline", "max_cost"])
def test_numbers_are_taken_as_texts_in_every_field(field: str) -> None:
    assert getattr(GenerateInput.model_validate({**INPUT, field: "7"}), field) == 7
    with pytest.raises(ValidationError):
        GenerateInput.model_validate({**INPUT, field: "seven"})


def test_the_same_request_with_nulls_is_a_repetition() -> None:
    opened = open_request({"input": {**INPUT, "priority": None}}, FoundJson(LIMITS))
    assert opened == open_request({"input": INPUT}, FoundJson(LIMITS))


def test_a_webhook_may_be_its_address() -> None:
    given = GenerateInput.model_validate({**INPUT, "webhook": "https://example.org/a"})
    assert given.webhook is not None and given.webhook.url == "https://example.org/a"
