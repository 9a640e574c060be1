"""worker-comfyui's requests become ours, and our results its replies."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from darkroom.worker.errors import RequestRejected
from darkroom.worker.integrations.runpod.shapes import InputRefused, result_reply, translate
from darkroom.worker.prompts.workflows.forms import EXPECTED

IMAGE = base64.b64encode(b"\x89PNG and so on").decode()
WORKFLOW: dict[str, Any] = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "mine.png", "upload": "image"}},
    "2": {"class_type": "LoadImage", "inputs": {"image": "theirs.png"}},
    "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a boat", "clip": ["4", 1]}},
}


def test_an_image_goes_into_the_inputs_that_name_it() -> None:
    given = {"workflow": WORKFLOW, "images": [{"name": "mine.png", "image": f"data:image/png;base64,{IMAGE}"}]}
    translated = translate({"input": given}, "job-1", wants_base64=True)
    body = translated.body["input"]
    assert translated.is_comfyui_shape
    assert (body["request_id"], body["return_outputs_as_base64"]) == ("job-1", True)
    assert body["workflow_json"]["1"]["inputs"]["image"] == f"data:image/png;base64,{IMAGE}"
    assert body["workflow_json"]["2"] == WORKFLOW["2"] and body["workflow_json"]["3"] == WORKFLOW["3"]
    assert WORKFLOW["1"]["inputs"]["image"] == "mine.png"


def test_an_input_may_be_a_text_and_bring_our_fields_but_no_key_for_others() -> None:
    given = json.dumps({"workflow": WORKFLOW, "webhook": {"url": "https://a"}, "comfy_org_api_key": "secret"})
    body = translate({"input": given}, "job-1", wants_base64=False).body["input"]
    assert body["webhook"] == {"url": "https://a"} and "secret" not in json.dumps(body)


def test_an_input_that_is_a_text_is_held_to_the_limits_of_json() -> None:
    deep = '{"workflow": ' + "[" * 500 + "]" * 500 + "}"
    with pytest.raises(RequestRejected) as raised:
        translate({"input": deep}, "job-1", wants_base64=False)
    assert raised.value.problems[0].type == "json_too_deep"


def test_our_own_form_is_passed_on() -> None:
    given = {"modifier": "Text2Image", "modifications": {"prompt": "x"}}
    translated = translate({"input": given}, "job-1", wants_base64=True)
    assert translated.body == {"input": {"request_id": "job-1", "return_outputs_as_base64": True, **given}}
    assert not translated.is_comfyui_shape


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "Please provide input"),
        ([], "Please provide input"),
        ("{", "Invalid JSON format in input"),
        ({}, "Missing 'workflow' parameter"),
        ({"workflow": "text"}, f"workflow: is no workflow; got the text 'text', expected {EXPECTED}"),
        ({"workflow": {}}, f"workflow: is no workflow; got an empty object, expected {EXPECTED}"),
        ({"workflow": {}, "images": "x"}, "'images' must be a list of objects with 'name' and 'image' keys"),
        (
            {"workflow": {}, "images": [{"name": "a"}]},
            "'images' must be a list of objects with 'name' and 'image' keys",
        ),
    ],
)
def test_what_makes_no_job_is_refused_in_the_known_words(given: Any, message: str) -> None:
    with pytest.raises(InputRefused) as caught:
        translate({"input": given}, "job-1", wants_base64=True)
    assert caught.value.as_reply()["error"] == message


def test_every_image_that_is_no_base64_is_named() -> None:
    images = [
        {"name": "a.png", "image": "no base64!"},
        {"name": "b.png", "image": IMAGE},
        {"name": "c", "image": "?"},
    ]
    with pytest.raises(InputRefused) as caught:
        translate({"input": {"workflow": {}, "images": images}}, "job-1", wants_base64=True)
    reply = caught.value.as_reply()
    assert reply["error"] == "Failed to upload one or more input images"
    assert [detail.split(":")[0] for detail in reply["details"]] == [
        "Error decoding base64 for a.png",
        "Error decoding base64 for c",
    ]


LINK = "http://127.0.0.1:8000/outputs/job-1/a.png?expires=1&signature=x"


def result(*outputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "job-1", "status": "completed", "message": "Processing complete.", "output": list(outputs)} | fields


def output(**fields: Any) -> dict[str, Any]:
    return {"filename": "a.png", "output_type": "images", "url": LINK} | fields


def test_images_are_returned_as_data_or_as_the_uploads_address() -> None:
    uploaded = output(url="https://bucket.s3.amazonaws.com/job-1/a.png?X-Amz-Signature=x&X-Amz-Expires=1")
    reply = result_reply(result(output(data=IMAGE), uploaded), is_comfyui_shape=True)
    assert reply == {
        "images": [
            {"filename": "a.png", "type": "base64", "data": IMAGE},
            {"filename": "a.png", "type": "s3_url", "data": uploaded["url"]},
        ]
    }


def test_other_files_stand_beside_the_images() -> None:
    reply = result_reply(result(output(output_type="video", filename="a.mp4", data="AAAA")), is_comfyui_shape=True)
    assert reply["images"] == [] and reply["status"] == "success_no_images"
    assert reply["files"] == [{"filename": "a.mp4", "type": "base64", "data": "AAAA"}]


def test_an_image_that_cannot_be_returned_is_an_error_beside_the_others() -> None:
    too_large = output(filename="b.png", data=None, error="larger than the limit")
    reply = result_reply(result(output(data=IMAGE), too_large), is_comfyui_shape=True)
    assert len(reply["images"]) == 1 and reply["errors"] == ["b.png cannot be returned: larger than the limit"]
    alone = result_reply(result(too_large), is_comfyui_shape=True)
    assert alone == {"error": "Job processing failed", "details": reply["errors"]}


def test_a_failed_upload_is_named_and_the_data_still_returned() -> None:
    reply = result_reply(result(output(upload_error="denied", data=IMAGE)), is_comfyui_shape=True)
    assert reply["errors"] == ["Error uploading a.png to S3: denied"] and reply["images"][0]["type"] == "base64"


def test_a_node_that_failed_is_reported_with_its_type_and_id() -> None:
    error = {"code": "node_failed", "node_id": "3", "class_type": "KSampler", "message": "it broke"}
    reply = result_reply(result(status="failed", error=error), is_comfyui_shape=True)
    assert reply == {
        "error": "Job processing failed",
        "details": ["Workflow execution error: Node Type: KSampler, Node ID: 3, Message: it broke"],
    }


def test_a_workflow_that_is_wrong_is_reported_with_every_problem() -> None:
    problems = [{"node_id": "1", "message": "no such node"}, {"field": "input.s3", "message": "is wrong"}]
    error = {"code": "request_rejected", "message": "no such node (and 1 more)", "problems": problems}
    reply = result_reply(result(status="failed", error=error), is_comfyui_shape=True)
    assert reply["details"] == ["Node 1: no such node", "input.s3: is wrong"]
    assert "refresh_worker" not in reply


def test_a_device_that_was_lost_asks_for_another_machine() -> None:
    error = {"code": "engine_unreachable", "message": "The engine was lost twice during this job"}
    for is_comfyui_shape in (True, False):
        assert result_reply(result(status="failed", error=error), is_comfyui_shape=is_comfyui_shape)["refresh_worker"]


def test_our_own_form_gets_our_own_result() -> None:
    given = result(output(data=IMAGE))
    assert result_reply(given, is_comfyui_shape=False) == given


@pytest.mark.parametrize("name", ["workflow", "prompt", "data", "body", "output", ""])
def test_a_workflow_without_an_input_around_it_is_the_jobs(name: str) -> None:
    graph = {"1": {"class_type": "Draw", "inputs": {}}}
    body = translate({name: graph} if name else graph, "job-1", wants_base64=True).body["input"]
    assert body["workflow_json"] == graph and set(body) == {"return_outputs_as_base64", "request_id", "workflow_json"}
