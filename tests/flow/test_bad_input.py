"""Wrong requests are refused with their field or node, and the worker goes on as if nothing had happened."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.flow.bodies import image_request, modifier_request, workflow, workflow_request
from tests.flow.receiver import Receiver
from tests.flow.running_worker import CHECKPOINT, RunningWorker


@pytest.fixture(autouse=True)
def goes_on(worker: RunningWorker) -> Iterator[None]:
    """After each wrong request the same engine still draws."""
    yield
    assert worker.generate(modifier_request()).status_code == 200
    assert worker.get("/health").json()["status"] == "healthy"


def problems_of(response: httpx.Response, status: int = 422) -> list[dict[str, Any]]:
    assert response.status_code == status, response.text
    result = response.json()
    assert result["status"] == "failed"
    assert result["output"] == []
    found: list[dict[str, Any]] = result["error"]["problems"]
    assert found
    return found


def changed(node_id: str, **inputs: Any) -> dict[str, Any]:
    """A workflow request whose node has other inputs; None takes one away."""
    prompt = workflow()
    kept = {**prompt[node_id]["inputs"], **inputs}
    prompt[node_id]["inputs"] = {name: value for name, value in kept.items() if value is not None}
    return {"input": {"workflow_json": prompt}}


def modified(**modifications: Any) -> dict[str, Any]:
    request = modifier_request()
    request["input"]["modifications"] |= modifications
    return request


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object(worker: RunningWorker, body: bytes) -> None:
    assert problems_of(worker.generate(body))[0]["field"] == "body"


def places_of(response: httpx.Response) -> set[str]:
    """The nodes that a failed job's error is about."""
    error = response.json()["error"]
    assert response.status_code == 422, response.text
    return {str(item["node_id"]) for item in error.get("problems", [error])}


@pytest.mark.parametrize("body", [{}, {"input": None}, {"input": []}, {"payload": {}, "auth_data": {}}])
def test_a_body_without_its_parts(worker: RunningWorker, body: dict[str, Any]) -> None:
    assert problems_of(worker.generate(body))[0]["field"]


def test_an_envelope_of_vast_that_is_none_is_answered_as_vast_does(worker: RunningWorker) -> None:
    response = worker.generate({"payload": {}, "auth_data": 5})
    assert response.status_code == 422
    assert set(response.json()) == {"auth_data"}


def test_an_unknown_modifier_is_answered_with_the_known_ones(worker: RunningWorker) -> None:
    (problem,) = problems_of(worker.generate({"input": {"modifier": "Text3Image", "modifications": {}}}))
    assert problem["field"] == "input.modifier"
    assert "Text2Image" in problem["allowed"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"modifier": "Text2Image", "modifications": {"prompt": "x"}, "workflow_json": workflow()},
        {"workflow_json": workflow(), "modifications": {"prompt": "x"}},
    ],
    ids=["neither", "both", "modifications without a modifier"],
)
def test_exactly_one_mode(worker: RunningWorker, fields: dict[str, Any]) -> None:
    assert problems_of(worker.generate({"input": fields}))[0]["field"].startswith("input")


def test_every_wrong_parameter_is_named_at_once(worker: RunningWorker) -> None:
    request = modified(width="wide", steps=0, cfg_scale=1e9, colour="red")
    fields = {problem["field"] for problem in problems_of(worker.generate(request))}
    assert fields == {f"input.modifications.{name}" for name in ("width", "steps", "cfg_scale", "colour")}


@pytest.mark.parametrize("size", [0, -8, 8, 1.5, 16_385, 10**30, "512px", True, [512]])
def test_a_size_out_of_range(worker: RunningWorker, size: Any) -> None:
    (problem,) = problems_of(worker.generate(modified(width=size)))
    assert problem["field"] == "input.modifications.width"
    assert problem["allowed"]


@pytest.mark.parametrize("name", ["sampler_name", "scheduler", "ckpt_name"])
def test_a_name_that_is_not_among_the_choices(worker: RunningWorker, name: str) -> None:
    (problem,) = problems_of(worker.generate(modified(**{name: "no_such"})))
    assert name in json.dumps(problem)
    assert problem["allowed"]


def test_an_unknown_node_class(worker: RunningWorker) -> None:
    prompt = workflow(n6={"class_type": "NoSuchNode", "inputs": {"samples": ["5", 0]}})
    (problem,) = problems_of(worker.generate({"input": {"workflow_json": prompt}}))
    assert problem["node_id"] == "6"
    assert "NoSuchNode" in json.dumps(problem)


def test_a_missing_model_file_is_answered_with_those_there_are(worker: RunningWorker) -> None:
    problem = problems_of(worker.generate(changed("1", ckpt_name="missing.safetensors")))[0]
    assert problem["node_id"] == "1"
    assert CHECKPOINT in json.dumps(problem["allowed"])
    assert "searched in models/checkpoints" in problem["message"] and str(worker.base) not in problem["message"]


@pytest.mark.parametrize(
    ("node_id", "inputs"),
    [
        ("5", {"steps": "many"}),
        ("5", {"steps": -1}),
        ("5", {"cfg": None}),
        ("5", {"sampler_name": "no_such"}),
        ("5", {"model": ["4", 0]}),
        ("5", {"model": ["99", 0]}),
        ("5", {"positive": "text"}),
        ("2", {"width": 20_000}),
        ("2", {"width": 8}),
        ("7", {"images": None}),
    ],
)
def test_a_wrong_input_of_a_node(worker: RunningWorker, node_id: str, inputs: dict[str, Any]) -> None:
    named = {problem.get("node_id") for problem in problems_of(worker.generate(changed(node_id, **inputs)))}
    assert node_id in named


def looped(num_iterations: int) -> dict[str, Any]:
    return {
        "start": {
            "class_type": "StartLoop",
            "inputs": {"mode": "simple", "mode.num_iterations": num_iterations, "cache_iterations": False},
        },
        "text": {"class_type": "StringFormat", "inputs": {"f_string": "{a}", "values.a": ["start", 0]}},
        "end": {"class_type": "EndLoop", "inputs": {"output_value": ["text", 0], "accumulate": False}},
        "show": {"class_type": "PreviewAny", "inputs": {"source": ["end", 0]}},
    }


def test_a_loop_that_is_too_long(worker: RunningWorker) -> None:
    request = {"input": {"workflow_json": looped(1001)}}
    (problem,) = problems_of(worker.generate(request))
    assert (problem["node_id"], problem["type"], problem["field"]) == ("start", "loop_too_long", "mode.num_iterations")
    assert problem["allowed"]["max"] == 1000
    refused = worker.http.post("/api/prompt", json={"prompt": looped(1001)})
    (error,) = refused.json()["node_errors"]["start"]["errors"]
    assert refused.status_code == 400 and "1001 iterations; expected at most 1000" in str(error)
    assert error["details"] == "mode.num_iterations"


def test_a_text_that_is_no_format(worker: RunningWorker) -> None:
    prompt = looped(2)
    prompt["text"]["inputs"]["f_string"] = "{a"
    (problem,) = problems_of(worker.generate({"input": {"workflow_json": prompt}}))
    assert problem["field"] == "f_string" and problem["message"].startswith("f_string: no format text")


def test_problems_of_all_nodes_come_together(worker: RunningWorker) -> None:
    request = changed("5", steps=0, sampler_name="no_such")
    request["input"]["workflow_json"]["2"]["inputs"]["width"] = "wide"
    named = [problem.get("node_id") for problem in problems_of(worker.generate(request))]
    assert named.count("5") == 2
    assert named.count("2") == 1


def test_a_circle_of_nodes(worker: RunningWorker) -> None:
    assert problems_of(worker.generate(changed("5", latent_image=["5", 0])))


def test_a_workflow_with_nothing_to_save(worker: RunningWorker) -> None:
    prompt = workflow()
    del prompt["7"]
    assert problems_of(worker.generate({"input": {"workflow_json": prompt}}))


def test_one_good_output_does_not_excuse_a_bad_one(worker: RunningWorker) -> None:
    prompt = workflow(n8={"class_type": "SaveImage", "inputs": {"images": ["6", 0]}})
    (problem,) = problems_of(worker.generate({"input": {"workflow_json": prompt}}))
    assert problem["node_id"] == "8"


def png_of(side_px: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side_px, side_px), "red").save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"this is no image", png_of(64)[:20], b"\x89PNG\r\n\x1a\n" + b"\0" * 100, b""],
    ids=["text", "cut short", "a header alone", "nothing"],
)
def test_a_broken_image(worker: RunningWorker, receiver: Receiver, content: bytes) -> None:
    receiver.files["/broken.png"] = content
    assert 400 <= worker.generate(image_request(f"{receiver.url}/broken.png")).status_code < 500


@pytest.mark.parametrize("address", ["{host}/missing.png", "http://127.0.0.1:1/x.png", "http://no-such-host.invalid/x"])
def test_an_image_address_that_fails(worker: RunningWorker, receiver: Receiver, address: str) -> None:
    assert places_of(worker.generate(image_request(address.format(host=receiver.url)))) == {"10"}


@pytest.mark.parametrize(
    "address", ["http://169.254.169.254/latest/x.png", "http://10.0.0.1/x.png", "http://[::1]/x.png"]
)
def test_an_image_address_inside_the_machines_own_network(worker: RunningWorker, address: str) -> None:
    assert places_of(worker.generate(image_request(address))) == {"10"}


def test_an_image_that_is_not_in_the_input_folder(worker: RunningWorker) -> None:
    assert problems_of(worker.generate(image_request("missing.png")))
    assert problems_of(worker.generate(image_request("../../../etc/passwd")))


@pytest.mark.parametrize(
    "content",
    [b"", b"not safetensors at all", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 8 + b"{}", b"\x40\0\0\0\0\0\0\0{"],
    ids=["empty", "text", "no tensors", "a header past the end", "a cut header"],
)
def test_a_corrupt_checkpoint_is_named_with_what_was_expected(worker: RunningWorker, content: bytes) -> None:
    path = worker.base / "models" / "checkpoints" / "corrupt.safetensors"
    path.write_bytes(content)
    try:
        response = worker.generate(modified(ckpt_name=path.name))
    finally:
        path.unlink()
    assert 400 <= response.status_code < 500, response.text
    assert path.name in response.text
    assert "expected" in response.text


def test_a_checkpoint_of_another_family(worker: RunningWorker, tmp_path: Path) -> None:
    header = json.dumps({"joint_blocks.0.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = worker.base / "models" / "checkpoints" / "other.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    try:
        response = worker.generate(modified(ckpt_name=path.name))
    finally:
        path.unlink()
    assert 400 <= response.status_code < 500, response.text
    assert path.name in response.text
    assert "Stable Diffusion" in response.text


def test_a_request_id_cannot_leave_the_folder_of_jobs(worker: RunningWorker) -> None:
    response = worker.generate(workflow_request(request_id="../../escaped"))
    assert response.status_code in (200, 422)
    assert not list(worker.base.parent.glob("**/escaped"))
