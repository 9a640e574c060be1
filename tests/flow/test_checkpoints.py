"""A job whose worker is killed in the middle of sampling goes on from its checkpoint, with the same bits."""

from __future__ import annotations

import base64
import io
import json
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from PIL import Image

from darkroom.worker.models.demo_model import DEMO_CHECKPOINT
from tests.flow.running_worker import RunningWorker, running_worker
from tests.s3_server import S3Server, client, running_s3_server
from tests.worker.sources.servers import redis_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHECKPOINTS = "darkroom-checkpoints/"
WAIT_SECONDS = 300.0
DRAWING = {
    "ckpt_name": DEMO_CHECKPOINT, "prompt": "a red apple", "steps": 40, "width": 128, "height": 128,
    "sampler_name": "dpmpp_2m_sde",
}  # fmt: skip


def until(is_there: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        found = is_there()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {WAIT_SECONDS:g} s")


def body(seed: int, **fields: Any) -> dict[str, Any]:
    return {"input": {"modifier": "Text2Image", "modifications": {**DRAWING, "seed": seed}, **fields}}


def pixels(content: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def drawn_anew(worker: RunningWorker, seed: int) -> np.ndarray[Any, Any]:
    result = worker.generate(body(seed, return_outputs_as_base64=True)).raise_for_status().json()
    return pixels(base64.b64decode(result["output"][0]["data"]))


def num_resumed(worker: RunningWorker) -> int:
    """Evaluations that the engine did not make again; 0 if nothing was resumed."""
    words = "sampling resumed after "
    log = worker.log.read_text()
    return int(log.partition(words)[2].split()[0]) if words in log else 0


def test_a_killed_worker_goes_on_after_its_start(tmp_path: Path) -> None:
    settings = {"CHECKPOINT_SECONDS": "0.05", "STATE_DIRECTORY": str(tmp_path / "state")}
    with running_worker(tmp_path, None, **settings) as worker:
        worker.http.post("/generate", json=body(5, request_id="one", return_outputs_as_base64=True)).raise_for_status()
        until(lambda: len(list((tmp_path / "state" / "checkpoints").glob("*/*/*.safetensors"))) >= 3)
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
    with running_worker(tmp_path, None, **settings) as worker:
        result = until(lambda: ended(worker, "one"))
        assert result["status"] == "completed", result["message"]
        assert num_resumed(worker) > 0
        image = pixels(base64.b64decode(result["output"][0]["data"]))
        until(lambda: not list((tmp_path / "state" / "checkpoints").iterdir()))
        np.testing.assert_array_equal(image, drawn_anew(worker, 5))


def test_an_urgent_job_takes_the_engine_and_the_other_goes_on_with_its_bits(tmp_path: Path) -> None:
    with running_worker(tmp_path, None, CHECKPOINT_SECONDS="600", PREEMPT_PRIORITY="5") as worker:
        worker.http.post("/generate", json=body(5, request_id="long", return_outputs_as_base64=True)).raise_for_status()
        until(lambda: "Progress" in worker.get("/result/long").json()["message"])
        request = body(6, request_id="urgent", priority=9)
        request["input"]["modifications"]["steps"] = 2
        assert worker.generate(request).json()["status"] == "completed"
        assert ended(worker, "long") is None, "it was not interrupted"
        result = until(lambda: ended(worker, "long"))
        assert result["status"] == "completed", result["message"]
        assert num_resumed(worker) > 0
        np.testing.assert_array_equal(pixels(base64.b64decode(result["output"][0]["data"])), drawn_anew(worker, 5))


def ended(worker: RunningWorker, job_id: str) -> Mapping[str, Any] | None:
    result: dict[str, Any] = worker.get(f"/result/{job_id}").json()
    return result if result["status"] in ("completed", "failed") else None


async def test_another_worker_goes_on_by_the_copy_in_s3_with_the_same_bits(tmp_path: Path, s3: S3Server) -> None:
    async with redis_server(tmp_path / "redis") as broker:
        queue = redis.Redis.from_url(broker.url)
        settings = {
            "CHECKPOINT_SECONDS": "0.05", "CHECKPOINT_STORE": "s3",
            "BROKER_URL": broker.url, "BROKER_LEASE_SECONDS": "3",
            "S3_ACCESS_KEY_ID": s3.access_key_id, "S3_SECRET_ACCESS_KEY": s3.secret_access_key,
            "S3_ENDPOINT_URL": s3.endpoint_url, "S3_BUCKET_NAME": s3.bucket, "S3_REGION": s3.region,
        }  # fmt: skip
        folders = [tmp_path / name for name in ("first", "second")]
        with running_worker(folders[0], None, **settings) as one, running_worker(folders[1], None, **settings) as two:
            queue.xadd("darkroom:jobs:normal", {"id": "far", "body": json.dumps(body(5))})
            until(lambda: objects(s3, CHECKPOINTS))
            lost, kept = (one, two) if one.get("/result/far").status_code == 200 else (two, one)
            lost.process.send_signal(signal.SIGKILL)
            lost.process.wait()
            result = json.loads(until(lambda: queue.get("darkroom:result:far")))
            assert result["status"] == "completed", result["message"]
            assert num_resumed(kept) > 0
            until(lambda: not objects(s3, CHECKPOINTS))
            image = pixels(s3.get(objects(s3, "far/")[0]["Key"]))
            np.testing.assert_array_equal(image, drawn_anew(kept, 5))


def objects(s3: S3Server, prefix: str) -> list[dict[str, Any]]:
    listed: dict[str, Any] = client(s3).list_objects_v2(Bucket=s3.bucket, Prefix=prefix)
    found: list[dict[str, Any]] = listed.get("Contents", [])
    return found


@pytest.fixture
def s3(tmp_path: Path) -> Any:
    folder = tmp_path / "s3"
    folder.mkdir()
    with running_s3_server(folder) as server:
        yield server
