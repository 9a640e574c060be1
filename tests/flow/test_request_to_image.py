"""A request becomes an image, through the real processes: front, engine, S3 server, webhook receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy
from PIL import Image

from tests.flow.bodies import (
    finished,
    image_request,
    modifier_request,
    vast_envelope,
    workflow_request,
)
from tests.flow.receiver import Receiver
from tests.flow.running_worker import RunningWorker
from tests.installed import InstalledWheel
from tests.s3_server import S3Server

EXPECTED = Path(__file__).parent / "expected"
# Other processors and torch versions round differently; see expected/README.md.
MEAN_DIFFERENCE = 1.0
LARGEST_DIFFERENCE = 8.0


def pixels(png: bytes) -> numpy.ndarray[Any, Any]:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return numpy.asarray(image.convert("RGB"), dtype=numpy.float64)


def assert_shows(png: bytes, expected: str) -> None:
    wanted = pixels((EXPECTED / expected).read_bytes())
    difference = numpy.abs(pixels(png) - wanted)
    assert difference.mean() <= MEAN_DIFFERENCE
    assert difference.max() <= LARGEST_DIFFERENCE


def test_a_modifier_draws_the_expected_image(worker: RunningWorker) -> None:
    result = finished(worker.generate(modifier_request()))
    (output,) = result["output"]
    assert output["type"] == "output"
    assert output["output_type"] == "images"
    assert result["message"].startswith("Processing complete.")
    assert_shows(worker.output_bytes(result), "text_to_image.png")


def test_a_workflow_draws_the_expected_images(worker: RunningWorker) -> None:
    result = finished(worker.generate(workflow_request()))
    assert [output["node_id"] for output in result["output"]] == ["7", "7"]
    for index, output in enumerate(result["output"]):
        assert_shows(httpx.get(output["url"]).content, f"workflow_{index}.png")


def test_an_envelope_of_vast_changes_nothing_about_the_image(worker: RunningWorker) -> None:
    result = finished(worker.generate(vast_envelope(modifier_request())))
    assert_shows(worker.output_bytes(result), "text_to_image.png")


def test_an_image_at_an_address_is_drawn_over(worker: RunningWorker, receiver: Receiver) -> None:
    receiver.files["/boat.png"] = (EXPECTED / "workflow_0.png").read_bytes()
    result = finished(worker.generate(image_request(f"{receiver.url}/boat.png")))
    assert_shows(worker.output_bytes(result), "image_to_image.png")


def test_images_come_as_base64_when_asked(worker: RunningWorker) -> None:
    in_body = finished(worker.generate(modifier_request(return_outputs_as_base64=True)))
    by_header = finished(worker.generate(modifier_request(), **{"X-Return-Outputs-As-Base64": "yes"}))
    for result in (in_body, by_header):
        (output,) = result["output"]
        assert output["mimetype"] == "image/png"
        assert_shows(base64.b64decode(output["data"]), "text_to_image.png")


def test_images_tell_nothing_about_their_making_by_default(worker: RunningWorker) -> None:
    png = worker.output_bytes(finished(worker.generate(modifier_request())))
    assert not Image.open(io.BytesIO(png)).info.keys() & {"prompt", "workflow"}


def test_an_image_is_uploaded_and_its_link_opens(worker: RunningWorker, s3_server: S3Server) -> None:
    target = {
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
        "bucket_name": s3_server.bucket,
        "endpoint_url": s3_server.endpoint_url,
        "region": s3_server.region,
    }
    result = finished(worker.generate(modifier_request(request_id="uploaded", s3=target)))
    (output,) = result["output"]
    assert "upload_error" not in output
    assert output["url"].startswith(s3_server.endpoint_url)
    assert_shows(httpx.get(output["url"]).content, "text_to_image.png")
    assert_shows(s3_server.get(f"uploaded/{output['filename']}"), "text_to_image.png")
    assert s3_server.secret_access_key not in json.dumps(result)


def test_a_failed_upload_leaves_the_job_completed_and_the_image_fetchable(
    worker: RunningWorker, s3_server: S3Server
) -> None:
    target = {
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": "not the secret",
        "bucket_name": s3_server.bucket,
        "endpoint_url": s3_server.endpoint_url,
        "region": s3_server.region,
        "connect_attempts": 1,
    }
    result = finished(worker.generate(modifier_request(s3=target)))
    (output,) = result["output"]
    assert output["upload_error"]
    assert_shows(worker.output_bytes(result), "text_to_image.png")


def test_a_webhook_is_signed_and_says_what_the_result_says(worker: RunningWorker, receiver: Receiver) -> None:
    webhook = {"url": f"{receiver.url}/done", "secret": "between us", "extra_params": {"order": 7}}
    result = finished(worker.generate(modifier_request(request_id="noticed", webhook=webhook)))
    delivery = receiver.next()
    signature = hmac.new(b"between us", delivery.body, hashlib.sha256).hexdigest()
    assert delivery.headers["X-Webhook-Signature"] == f"sha256={signature}"
    notice = json.loads(delivery.body)
    assert notice["id"] == "noticed"
    assert notice["status"] == "completed"
    assert notice["extra"] == {"order": 7}
    assert [item["filename"] for item in notice["output"]] == [item["filename"] for item in result["output"]]


def test_a_webhook_that_is_refused_is_sent_again_under_the_same_id(worker: RunningWorker, receiver: Receiver) -> None:
    webhook = {"url": f"{receiver.url}/refuse-once", "secret": "between us"}
    finished(worker.generate(modifier_request(webhook=webhook)))
    first, second = receiver.next(), receiver.next(timeout_seconds=90)
    assert first.body == second.body


def test_a_job_can_be_asked_for_later(worker: RunningWorker) -> None:
    accepted = httpx.post(f"{worker.url}/generate", json=modifier_request(request_id="later"), timeout=30)
    assert accepted.status_code == 202
    with httpx.stream("POST", f"{worker.url}/generate/stream", json=modifier_request(request_id="later")) as stream:
        events = [json.loads(line.removeprefix("data:")) for line in stream.iter_lines() if line.startswith("data:")]
    assert events[-1]["status"] == "final_result"
    result = finished(worker.get("/result/later"))
    assert_shows(worker.output_bytes(result), "text_to_image.png")


def test_the_same_request_runs_once_and_another_body_under_its_id_is_refused(worker: RunningWorker) -> None:
    first = finished(worker.generate(workflow_request("__RANDOM_INT__", request_id="once")))
    again = finished(worker.generate(workflow_request("__RANDOM_INT__", request_id="once")))
    assert [item["filename"] for item in first["output"]] == [item["filename"] for item in again["output"]]
    assert first["timings"] == again["timings"]
    assert worker.generate(modifier_request(request_id="once")).status_code == 409


def test_the_installed_client_saves_an_image(
    worker: RunningWorker, installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    command = ("generate", "a lighthouse", "--url", worker.url, "-o", "image.png", "--width", "64", "--height", "64")
    done = installed_wheel.run(*command, "--steps", "2", "--checkpoint", "small.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert pixels((tmp_path / "image.png").read_bytes()).shape == (64, 64, 3)


def test_a_stream_shows_the_image_while_it_is_sampled(worker: RunningWorker) -> None:
    body = modifier_request(previews=True)
    with worker.http.stream("POST", "/generate/stream", json=body, timeout=60) as events:
        told = [json.loads(line.removeprefix("data: ")) for line in events.iter_lines() if line.startswith("data: ")]
    previews = [event["preview"] for event in told if "preview" in event]
    assert previews
    assert told[-1]["result"]["status"] == "completed"
    for preview in previews:
        assert Image.open(io.BytesIO(base64.b64decode(preview["data"]))).format == preview["mimetype"][6:].upper()
