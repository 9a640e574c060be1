"""Files sent beside the JSON, through the real processes."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pytest
from PIL import Image

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.worker.inputs.fetch import decode_data_uri
from tests.flow.bodies import image_request
from tests.flow.running_worker import RunningWorker


def image(colour: str = "red", side_px: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side_px, side_px), colour).save(buffer, "PNG")
    return buffer.getvalue()


def send(worker: RunningWorker, body: dict[str, Any], route: str = "sync", part: str = "input", **files: bytes) -> Any:
    parts: dict[str, Any] = {name: (f"{name}.bin", content) for name, content in files.items()}
    return httpx.post(f"{worker.url}/generate/{route}", data={part: json.dumps(body)}, files=parts, timeout=60)


def leftovers(worker: RunningWorker) -> list[str]:
    return [path.name for path in (worker.base / "input" / "darkroom").glob(".partial-*")]


def test_a_file_part_is_what_its_name_stands_for(worker: RunningWorker) -> None:
    response = send(worker, image_request("photo"), photo=bytes(decode_data_uri(EXAMPLE_IMAGE)))
    assert response.status_code == 200, response.text
    inline = worker.generate(image_request(EXAMPLE_IMAGE))
    assert worker.output_bytes(response.json()) == worker.output_bytes(inline.json())
    assert leftovers(worker) == []


@pytest.mark.parametrize("part", ["input", "json"])
def test_the_json_part_may_hold_the_input_object_alone(worker: RunningWorker, part: str) -> None:
    assert send(worker, image_request("photo")["input"], part=part, photo=image()).status_code == 200


def test_the_same_request_with_the_same_file_runs_once_and_with_another_is_refused(worker: RunningWorker) -> None:
    body = image_request("photo", request_id="with-file")
    first = send(worker, body, photo=image("red"))
    again = send(worker, body, photo=image("red"))
    assert first.status_code == again.status_code == 200
    assert first.json()["timings"] == again.json()["timings"]
    assert send(worker, body, photo=image("blue")).status_code == 409
    assert leftovers(worker) == []


def test_one_file_may_stand_in_several_places_and_several_files_in_one_request(worker: RunningWorker) -> None:
    modifications = {"prompt": "a fox", "input_image": "photo", "mask_image": "mask", "steps": 2}
    body = {"input": {"modifier": "Inpaint", "modifications": modifications}}
    assert send(worker, body, photo=image(), mask=bytes(decode_data_uri(EXAMPLE_IMAGE))).status_code == 200
    modifications["mask_image"] = "photo"
    assert send(worker, body, photo=image()).status_code == 200


def test_a_part_that_nothing_names_is_refused_by_name(worker: RunningWorker) -> None:
    response = send(worker, image_request("photo"), photo=image(), other=image())
    (problem,) = response.json()["error"]["problems"]
    assert (response.status_code, problem["field"], problem["type"]) == (422, "other", "unused_file")
    assert leftovers(worker) == []


@pytest.mark.parametrize("content", [b"no image", b"", image()[:20]], ids=["text", "nothing", "cut short"])
def test_a_file_that_is_no_image_is_refused_at_once_with_its_parameter(worker: RunningWorker, content: bytes) -> None:
    response = send(worker, image_request("photo"), photo=content)
    (problem,) = response.json()["error"]["problems"]
    assert (response.status_code, problem["node_id"]) == (422, "10")
    assert problem["field"] == "input.modifications.input_image"
    assert "photo" in problem["message"]
    assert leftovers(worker) == []


@pytest.mark.parametrize(
    ("content_type", "content", "words"),
    [
        ("multipart/form-data", b"", "boundary"),
        ("multipart/form-data; boundary=x", b"no parts at all", "malformed"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="json"\r\n\r\n{', "trunc"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n',
            "no part input or json",
        ),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Type: text/plain\r\n\r\nb\r\n--x--\r\n", "part name"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_whole_form_is_refused(
    worker: RunningWorker, content_type: str, content: bytes, words: str
) -> None:
    response = worker.generate(content, **{"Content-Type": content_type})
    assert response.status_code == 422, response.text
    assert words in response.json()["error"]["problems"][0]["message"]
    assert leftovers(worker) == []


def test_a_json_part_that_is_no_json_is_refused(worker: RunningWorker) -> None:
    response = httpx.post(f"{worker.url}/generate/sync", data={"input": "{"}, files={"photo": image()}, timeout=60)
    assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, "body")


def test_a_name_of_an_upload_that_is_not_there_is_refused(worker: RunningWorker) -> None:
    response = worker.generate(image_request(f"upload:{'0' * 64}.png"))
    assert response.status_code == 422
    assert "send it again" in response.text


def test_an_upload_is_not_read_from_outside_its_folder(worker: RunningWorker) -> None:
    for name in ("upload:../../secret.png", f"upload:{'../' * 21}a.png"):
        assert worker.generate(image_request(name)).status_code == 422
