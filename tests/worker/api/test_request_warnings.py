"""Nothing of a request is dropped in silence."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.graph.cost import Price
from darkroom.worker.api.request_warnings import (
    MAX_WARNINGS,
    assumed_cost_warnings,
    find_form_warnings,
    find_size_warnings,
)
from tests.fakes import draw
from tests.worker.running_front import RunningFront

LATENT = {"Empty": {"output": ["LATENT"]}, "Scale": {"output": ["IMAGE"]}}


def fields_of(payload: dict[str, Any]) -> dict[object, object]:
    return {warning["field"]: warning.get("nearest") for warning in find_form_warnings(payload)}


def test_misspelt_unknown_and_misplaced_names_are_named_with_the_nearest() -> None:
    given = {"priorty": 1, "returnOutputsAsBase64": True, "zzz": 0, "modifier": "X", "webhook": {"urls": "x"}}
    payload = {"input": {**given, "s3": {"bucket": "b", "region": "r"}}, "webhook": {}, "id": "runpods"}
    assert fields_of(payload) == {
        "input.priorty": "priority",
        "input.returnOutputsAsBase64": "return_outputs_as_base64",
        "input.zzz": None,
        "input.webhook.urls": "url",
        "input.s3.bucket": "bucket_name",
        "webhook": "input.webhook",
    }


def test_warnings_are_few_and_short() -> None:
    found = find_form_warnings({"input": {f"{'x' * 5000}{n}": 0 for n in range(100)}})
    assert len(found) == MAX_WARNINGS and len(str(found)) < 20_000


@pytest.mark.parametrize(("width", "is_odd"), [(133, True), (128, False), (True, False), (["1", 0], False), (3, True)])
def test_a_side_that_is_no_whole_number_of_latent_cells_is_named(width: object, is_odd: bool) -> None:
    prompt = {
        "1": {"class_type": "Empty", "inputs": {"width": width, "height": 64}},
        "2": {"class_type": "Scale", "inputs": {"width": 133, "height": 1}},
        "3": "no node",
    }
    found = find_size_warnings(prompt, LATENT)
    assert [(node_id, side) for node_id, side, _ in found] == ([("1", "width")] if is_odd else [])


def test_a_cost_that_was_assumed_names_the_model_and_the_sampler() -> None:
    found = assumed_cost_warnings(Price(100.0, ("a.safetensors",), ("of_a_pack",)))
    assert [(item["type"], str(item["message"]).partition(":")[0]) for item in found] == [
        ("cost_assumed", "a.safetensors"),
        ("cost_assumed", "of_a_pack"),
    ]
    assert assumed_cost_warnings(Price(100.0)) == []


async def test_warnings_are_in_the_answer_and_in_the_result(front: RunningFront) -> None:
    taken = await front.http.post("/generate", json={"input": {"request_id": "w", "workflow_json": draw(), "sed": 1}})
    (warning,) = taken.json()["warnings"]
    assert (warning["field"], warning["type"]) == ("input.sed", "unknown_field")
    assert (await front.until("w", "completed"))["warnings"] == [warning]
    assert "warnings" not in (await front.sync(draw("other"))).json()


async def test_a_request_id_that_is_replaced_is_said_to_be(front: RunningFront) -> None:
    result = (await front.sync(draw(), request_id="../../x")).json()
    (warning,) = result["warnings"]
    assert (warning["type"], warning["used"], warning["field"]) == (
        "request_id_replaced",
        result["id"],
        "input.request_id",
    )
    body = {"input": {"workflow_json": draw("b")}}
    keyed = (await front.http.post("/generate/sync", json=body, headers={"Idempotency-Key": "a b"})).json()
    assert keyed["warnings"][0]["field"] == "Idempotency-Key"


async def test_a_body_without_input_is_told_what_it_looks_like(front: RunningFront) -> None:
    refused = (await front.http.post("/generate", json={"modifications": {}})).json()
    (problem,) = refused["error"]["problems"]
    assert problem["field"] == "input" and '{"input": {' in problem["message"]


async def test_a_store_without_keys_is_refused(front: RunningFront) -> None:
    refused = await front.sync(draw(), s3={"bucket_name": "b"})
    (problem,) = refused.json()["error"]["problems"]
    assert (refused.status_code, problem["field"], problem["type"]) == (422, "input.s3.access_key_id", "missing")
    empty = {"access_key_id": "", "secret_access_key": "", "bucket_name": "", "endpoint_url": ""}
    assert (await front.sync(draw(), s3=empty)).status_code == 200


async def test_the_cancellation_of_an_unknown_job_is_refused_like_everything_else(front: RunningFront) -> None:
    refused = await front.http.post("/cancel/nobody")
    asked = await front.http.get("/result/nobody")
    assert (refused.status_code, refused.json()) == (404, asked.json())
    assert refused.json()["error"]["code"] == "job_not_found"


async def test_credentials_without_a_bucket_do_not_store_outputs_in_silence(front: RunningFront) -> None:
    keys = {"access_key_id": "a", "secret_access_key": "planted-secret", "region": "r"}
    result = (await front.sync(draw(), s3=keys)).json()
    (warning,) = result["warnings"]
    assert (warning["field"], warning["type"]) == ("input.s3.bucket_name", "missing")
    assert "planted-secret" not in str(result)
