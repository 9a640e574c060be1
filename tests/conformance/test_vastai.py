"""The official `vastai` package against our worker: its client through a stand-in autoscaler, its worker in front.

The package pins other versions of what we use, so it lives in an environment of its own, whose Python VASTAI_PYTHON
names; docs/deploying.md says how to make it. Without one these tests are skipped.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.conformance.certificates import make_certificates
from tests.conformance.processes import front_process, script
from tests.fakes import FakeEngine, draw, fail, running_engine, wait
from tests.flow.bodies import workflow
from tests.flow.running_worker import CHECKPOINT
from tests.s3_server import free_ports
from tests.worker.integrations.vast.stand_in import StandIn
from tests.worker.running_front import until

PYTHON = os.environ.get("VASTAI_PYTHON") or (sys.executable if importlib.util.find_spec("vastai") else "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="VASTAI_PYTHON names no Python with the vastai package")

FOLDER = Path(__file__).parent
TOKEN = "master-token-of-this-test"
API_KEY = "api-key-that-no-log-may-show"
ENDPOINT = {"id": 7, "endpoint_name": "pictures", "api_key": API_KEY, "user_id": 1, "created_at": 0.0}


@pytest.fixture
async def autoscaler(tmp_path: Path) -> AsyncIterator[StandIn]:
    certificates = make_certificates(tmp_path)
    async with StandIn(root_certificate=certificates.root_pem, endpoint=ENDPOINT) as running:
        yield running


def vast_environment(autoscaler: StandIn, port: int, container_id: int = 1) -> dict[str, str]:
    (http_port,) = free_ports(1)
    return {
        "MASTER_TOKEN": TOKEN,
        "CONTAINER_ID": str(container_id),
        "REPORT_ADDR": autoscaler.url,
        "PUBLIC_IPADDR": "127.0.0.1",
        f"VAST_TCP_PORT_{port}": str(port),
        "WORKER_PORT": str(port),
        "WORKER_HTTP_PORT": str(http_port),
    }


def request(workflow_json: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"route": "/generate/sync", "payload": {"input": {"workflow_json": workflow_json, **fields}}}


async def ask(folder: Path, autoscaler: StandIn, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the official client's results for the requests, sent at once."""
    given = {"autoscaler": autoscaler.url, "api_key": API_KEY, "requests": requests, "timeout": 60.0}
    content = json.dumps(given).encode()
    path = FOLDER / "vast_client.py"
    async with script(PYTHON, path, cwd=folder, environment={}, standard_input=content) as process:
        assert process.stdout is not None
        output = await process.stdout.read()
    assert output, (folder / "vast_client.log").read_text()
    answers: list[dict[str, Any]] = json.loads(output)["answers"]
    return answers


async def until_begun(engine: FakeEngine, num_runs: int = 1) -> None:
    async def has_begun() -> bool:
        return len(engine.runs) >= num_runs

    await until(has_begun)


async def test_its_client_gets_a_real_image_over_https(
    tmp_path: Path, autoscaler: StandIn, small_checkpoint: Path
) -> None:
    (port,) = free_ports(1)
    base = tmp_path / "base"
    (base / "models" / "checkpoints").mkdir(parents=True)
    (base / "models" / "checkpoints" / CHECKPOINT).hardlink_to(small_checkpoint)
    environment = vast_environment(autoscaler, port) | {
        "USE_SSL": "true",
        "SSL_CERTFILE": str(tmp_path / "instance.crt"),
        "SSL_KEYFILE": str(tmp_path / "instance.key"),
        "CPU": "true",
        "PRECISION": "fp32",
    }
    async with front_process(base, port, **environment) as front:
        await autoscaler.until_status(loadtime=lambda seconds: seconds > 0, seconds=90)
        (answer,) = await ask(tmp_path, autoscaler, request(workflow(), return_outputs_as_base64=True))
        assert answer["url"] == f"https://127.0.0.1:{port}"
        image = base64.b64decode(answer["response"]["output"][0]["data"])
        assert Image.open(io.BytesIO(image)).size == (96, 64)
        assert (await autoscaler.until_end(answer["request_idx"]))["status"] == "Success"
    log = front.log.read_text()
    assert "job ended" in log
    assert API_KEY not in log and TOKEN not in log


async def test_its_client_uses_a_session_and_learns_why_a_job_failed(tmp_path: Path, autoscaler: StandIn) -> None:
    (port,) = free_ports(1)
    environment = vast_environment(autoscaler, port)
    async with (
        running_engine(tmp_path) as engine,
        front_process(tmp_path / "a", port, ENGINE_URL=engine.url, **environment) as front,
    ):
        await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
        inside = [request(draw("one")) | {"in_session": True}, request(draw("two")) | {"in_session": True}]
        failed, unknown, one, two, health = await ask(
            tmp_path, autoscaler, request(fail()), request({"1": {"class_type": "Nope", "inputs": {}}}), *inside
        )
        assert (failed["status"], failed["response"]["status"]) == (422, "failed")
        assert unknown["status"] == 422 and "Nope" in str(unknown["response"]["error"])
        assert one["status"] == two["status"] == 200
        assert health == {"session_is_open": True}
        assert (await autoscaler.until_end(failed["request_idx"]))["status"] == "Error"
        assert (await autoscaler.until_end(unknown["request_idx"]))["status"] == "Success"
    assert API_KEY not in front.log.read_text()


async def test_its_client_survives_a_worker_that_is_killed_and_started_again(
    tmp_path: Path, autoscaler: StandIn
) -> None:
    (port,) = free_ports(1)
    environment = vast_environment(autoscaler, port)
    async with running_engine(tmp_path) as engine:
        environment["ENGINE_URL"] = engine.url
        async with front_process(tmp_path / "a", port, **environment) as front:
            await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
            asked = asyncio.create_task(ask(tmp_path, autoscaler, request(wait())))
            await until_begun(engine)
            front.kill()
            await front.process.wait()
        async with front_process(tmp_path / "a", port, **environment):
            engine.release()
            (answer,) = await asked
        assert (answer["status"], answer["response"]["status"]) == (200, "completed")
        assert len(autoscaler.routed) > 1
        assert len(engine.runs) == 1


async def test_its_client_goes_to_a_second_worker_when_the_first_is_gone(tmp_path: Path, autoscaler: StandIn) -> None:
    ports = free_ports(2)
    environments = [vast_environment(autoscaler, port, number) for number, port in enumerate(ports, start=1)]
    async with (
        running_engine(tmp_path) as first_engine,
        running_engine(tmp_path) as second_engine,
        front_process(tmp_path / "a", ports[0], ENGINE_URL=first_engine.url, **environments[0]) as first,
    ):
        await autoscaler.until_status(id=1, loadtime=lambda seconds: seconds > 0)
        async with front_process(tmp_path / "b", ports[1], ENGINE_URL=second_engine.url, **environments[1]):
            await autoscaler.until_status(id=2, loadtime=lambda seconds: seconds > 0)
            asked = asyncio.create_task(ask(tmp_path, autoscaler, request(wait(), request_id="the-one")))
            await until_begun(first_engine)
            first.kill()
            autoscaler.forget_worker(first.url)
            second_engine.release_all()
            (answer,) = await asked
        assert answer["status"] == 200 and answer["url"] == f"http://127.0.0.1:{ports[1]}"
        assert (len(first_engine.runs), len(second_engine.runs)) == (1, 1)


async def test_its_worker_in_front_of_ours_passes_its_benchmark_and_serves(tmp_path: Path, autoscaler: StandIn) -> None:
    port, stock_port, stock_http_port = free_ports(3)
    environment = vast_environment(autoscaler, stock_port) | {"WORKER_HTTP_PORT": str(stock_http_port)}
    async with (
        running_engine(tmp_path) as engine,
        front_process(tmp_path / "a", port, ENGINE_URL=engine.url) as front,
    ):
        arguments = [str(port), str(front.log), json.dumps({"input": {"workflow_json": draw("benchmark")}})]
        path = FOLDER / "vast_worker.py"
        async with script(PYTHON, path, *arguments, cwd=tmp_path, environment=environment):
            loaded = await autoscaler.until_status(loadtime=lambda seconds: seconds > 0, seconds=60)
            assert loaded["error_msg"] == "" and loaded["max_perf"] > 0
            assert len(engine.runs) == 3  # a warm-up and two rounds
            auth = autoscaler.auth(f"http://127.0.0.1:{stock_port}", 1)
            body = {"auth_data": auth, "payload": request(draw("served"))["payload"]}
            async with httpx.AsyncClient(timeout=30) as http:
                reply = await http.post(f"http://127.0.0.1:{stock_port}/generate/sync", json=body)
            assert (reply.status_code, reply.json()["status"]) == (200, "completed")
            assert (await autoscaler.until_end(1))["status"] == "Success"
