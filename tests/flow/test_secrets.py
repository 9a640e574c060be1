"""Secrets are planted wherever one can come from, and looked for wherever one could come out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.flow.receiver import Receiver
from tests.flow.running_worker import RunningWorker, running_worker, stop
from tests.s3_server import S3Server

ENVIRONMENT = {
    "S3_ACCESS_KEY_ID": "planted-env-id",
    "S3_SECRET_ACCESS_KEY": "planted-env-secret",
    "WEBHOOK_SECRET": "planted-env-hook",
    "API_KEYS": "planted-env-key,second:planted-env-key-2",
    "ADMIN_API_KEYS": "ops:planted-env-admin",
    "TRUST_LOOPBACK": "true",
    "MASTER_TOKEN": "planted-env-master",
    "HF_TOKEN": "planted-env-hub",
    "AWS_SECRET_ACCESS_KEY": "planted-env-aws",
}
QUERY = "X-Amz-Signature=planted-signature&token=planted-token"


def image() -> bytes:
    held = io.BytesIO()
    Image.linear_gradient("L").save(held, "PNG")
    return held.getvalue()


def workflow(image: str) -> dict[str, Any]:
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": image}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "secrets"}},
    }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    base = tmp_path_factory.mktemp("secrets")
    with running_worker(base, small_checkpoint, **ENVIRONMENT, DEBUG="true", METADATA="full") as running:
        yield running


def s3_of(server: S3Server, secret: str) -> dict[str, Any]:
    return {
        "access_key_id": server.access_key_id,
        "secret_access_key": secret,
        "endpoint_url": server.endpoint_url,
        "bucket_name": server.bucket,
        "connect_attempts": 1,
    }


def send_everything(worker: RunningWorker, receiver: Receiver, s3: S3Server) -> list[str]:
    """Requests that go well and requests that fail at each stage, all with secrets in them; gives the replies."""
    receiver.files[f"/in.png?{QUERY}"] = image()
    address = receiver.url.removeprefix("http://")
    good_url = f"http://planted-user:planted-password@{address}/in.png?{QUERY}"
    hook = {"url": f"{receiver.url}/refuse-once?token=planted-hook-token", "secret": "planted-hook-secret"}
    wrong = s3_of(s3, "planted-s3-secret")
    bodies = [
        {"workflow_json": workflow(good_url), "request_id": "good", "webhook": hook},
        {"workflow_json": workflow(good_url), "request_id": "refused-upload", "s3": wrong, "webhook": hook},
        {"workflow_json": workflow(f"{receiver.url}/gone.png?{QUERY}"), "request_id": "gone", "webhook": hook},
        {"workflow_json": workflow(f"http://10.0.0.1/x.png?{QUERY}"), "request_id": "refused", "s3": wrong},
        {"workflow_json": workflow(f"s3://{s3.bucket}/none.png"), "request_id": "bucket", "s3": wrong},
        {"workflow_json": workflow(good_url), "s3": wrong | {"endpoint_url": f"http://10.0.0.1/?{QUERY}"}},
        {"workflow_json": workflow(good_url), "webhook": hook | {"url": f"http://10.0.0.1/?{QUERY}"}},
        {"workflow_json": {"1": {"class_type": "None"}}, "s3": wrong, "webhook": hook},
        {"workflow_json": workflow(good_url), "s3": wrong | {"connect_attempts": "planted-number"}},
    ]
    headers = {"Authorization": "Bearer planted-env-key", "X-Include-ComfyUI-Response": "true"}
    return [worker.generate({"input": body}, **headers).text for body in bodies]


def ask_everything(worker: RunningWorker) -> list[str]:
    routes = ["/queue-info", "/metrics", "/health", "/ready", "/webhooks", "/benchmark", "/modifiers", "/openapi.json"]
    routes += [f"/result/{name}" for name in ("good", "refused-upload", "gone", "refused", "bucket", "none")]
    return [f"{route}: {worker.get(route).text}" for route in routes]


def environments_below(process_id: int) -> list[str]:
    """The environments of the processes that a process started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent == process_id:
                found.append((status.parent / "environ").read_bytes().decode(errors="replace"))
        except (OSError, ValueError, IndexError):
            continue
    return found


def test_no_planted_secret_comes_out_anywhere(guarded: RunningWorker, receiver: Receiver, s3_server: S3Server) -> None:
    replies = send_everything(guarded, receiver, s3_server)
    deliveries = [receiver.next(), receiver.next()]
    assert [json.loads(reply)["status"] for reply in replies[:3]] == ["completed", "completed", "failed"]
    assert "upload_error" in replies[1]
    images = [httpx.get(json.loads(reply)["output"][0]["url"]).content for reply in replies[:2]]
    assert all(b"LoadImage" in content for content in images)  # METADATA=full: it does say how it was made
    engines = environments_below(guarded.process.pid)
    assert any("BASE" not in item and "PATH=" in item for item in engines)
    shown = [*replies, *ask_everything(guarded), *engines, guarded.log.read_text()]
    shown += [content.decode("latin-1") for content in images]
    shown += [path.read_bytes().decode("latin-1") for path in (guarded.base / "output").rglob("*.png")]
    shown += [delivery.body.decode() for delivery in deliveries]
    assert not [text[:2000] for text in shown if "planted-" in text]


def test_nothing_of_a_request_is_left_on_the_disk_when_its_delivery_has_ended(guarded: RunningWorker) -> None:
    """The request is that of the first test; the addresses of inputs stay with their job, they are its prompt."""
    stop(guarded)
    for path in (guarded.base / "state").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in (b"planted-s3-secret", b"planted-env", b"planted-number"):
                assert secret not in content, path
