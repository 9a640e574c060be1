"""The whole front as a process, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.worker.engines.client.prompt_calls import NAMESPACE
from darkroom.worker.engines.supervisor import free_port
from tests.fakes import FakeEngine, draw, wait
from tests.worker.databases import give_database
from tests.worker.running_front import until


class FrontProcess:
    def __init__(self, process: asyncio.subprocess.Process, http: httpx.AsyncClient, log: Path) -> None:
        self.process, self.http, self.log = process, http, log

    async def status(self, job_id: str) -> str:
        status: str = (await self.http.get(f"/result/{job_id}")).json()["status"]
        return status

    async def until_status(self, job_id: str, status: str) -> None:
        async def is_there() -> bool:
            return await self.status(job_id) == status

        await until(is_there)

    async def send(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        return await self.process.wait()


@asynccontextmanager
async def front_process(tmp_path: Path, engine: FakeEngine, **names: str) -> AsyncIterator[FrontProcess]:
    port, log = free_port(), tmp_path / "front.log"
    settings = {"ENGINE_URL": engine.url, "STATE_DIRECTORY": str(tmp_path / "state"), "WORKER_PORT": str(port)}
    settings |= {"BENCHMARK": "off", "LOG_FORMAT": "json", "MIN_FREE_DISK_BYTES": "0", "DRAIN_TIMEOUT": "5", **names}
    give_database(tmp_path / "state")
    with log.open("a") as output:  # noqa: ASYNC230 - the child writes to it
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "darkroom.worker", env={**os.environ, **settings}, stdout=output, stderr=output
        )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:

        async def is_ready() -> bool:
            assert process.returncode is None, log.read_text()
            try:
                return (await http.get("/ready")).status_code == 200
            except httpx.TransportError:
                return False

        await until(is_ready)
        try:
            yield FrontProcess(process, http, log)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def body(workflow: Mapping[str, Any], job_id: str, **fields: Any) -> dict[str, Any]:
    return {"input": {"workflow_json": workflow, "request_id": job_id, **fields}}


async def test_every_acknowledged_job_ends_after_kill_9_and_ended_ones_are_not_drawn_again(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with front_process(tmp_path, engine) as front:
        assert (await front.http.post("/generate/sync", json=body(draw(), "before"))).status_code == 200
        for name in ("running", "second", "third", "fourth"):
            reply = await front.http.post("/generate", json=body(wait(), name))
            assert reply.status_code == 202
        await front.until_status("running", "generating")
        await front.send(signal.SIGKILL)
    engine.forget_everything()  # the engine went with it
    engine.release_all()
    async with front_process(tmp_path, engine) as front:
        assert await front.status("before") == "completed"
        for name in ("running", "second", "third", "fourth"):
            await front.until_status(name, "completed")
    assert engine.runs.count("before-1") == 1
    assert len(engine.runs) <= 6


@pytest.mark.parametrize("takes_uuids_alone", [False, True])
async def test_a_prompt_that_a_foreign_engine_still_has_is_awaited_and_not_sent_twice(
    tmp_path: Path, engine: FakeEngine, takes_uuids_alone: bool
) -> None:
    engine.takes_uuids_alone = takes_uuids_alone
    async with front_process(tmp_path, engine) as front:
        await front.http.post("/generate", json=body(wait(), "long"))

        async def has_begun() -> bool:
            await asyncio.sleep(0.1)  # so that "running" is on disk
            return bool(engine.runs)

        await until(has_begun)
        await front.send(signal.SIGKILL)
    async with front_process(tmp_path, engine) as front:
        assert await front.status("long") in ("pending", "processing", "generating")
        engine.release()
        await front.until_status("long", "completed")
    assert engine.runs == [str(uuid.uuid5(NAMESPACE, "long-1")) if takes_uuids_alone else "long-1"]


async def test_sigterm_lets_the_running_job_end_and_keeps_the_rest(tmp_path: Path, engine: FakeEngine) -> None:
    async with front_process(tmp_path, engine) as front:
        waiting = asyncio.create_task(front.http.post("/generate/sync", json=body(wait(), "running")))

        async def has_begun() -> bool:
            return bool(engine.runs)

        async def has_stopped() -> bool:
            return (await front.http.get("/ready")).status_code == 503

        await until(has_begun)
        front.process.send_signal(signal.SIGTERM)
        await until(has_stopped)
        engine.release()
        assert await front.process.wait() == 0
        assert (await waiting).status_code == 200


async def test_secrets_of_a_request_reach_neither_log_nor_result(tmp_path: Path, engine: FakeEngine) -> None:
    secrets = {"access_key_id": "planted-id", "secret_access_key": "planted-secret", "bucket_name": ""}
    async with front_process(tmp_path, engine, API_KEYS="planted-key") as front:
        reply = await front.http.post(
            "/generate/sync?api_key=planted-query",
            json=body(draw(), "one", s3=secrets, webhook={"url": "", "secret": "planted-webhook"}),
            headers={"Authorization": "Bearer planted-key"},
        )
        assert reply.status_code == 200
        seen = reply.text + json.dumps((await front.http.get("/queue-info")).json()) + front.log.read_text()
        await front.send(signal.SIGTERM)
    assert "planted" not in seen + front.log.read_text()


async def test_a_setting_that_does_not_parse_stops_the_start_and_names_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "darkroom.worker"),
        env={**os.environ, "MAX_QUEUE_SIZE": "many"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert b"MAX_QUEUE_SIZE" in stderr


async def test_a_second_front_on_the_same_state_ends_at_once_and_names_the_first(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with front_process(tmp_path, engine) as front:
        settings = {"ENGINE_URL": engine.url, "STATE_DIRECTORY": str(tmp_path / "state"), "WORKER_PORT": "0"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "darkroom.worker"),
            env={**os.environ, **settings, "BENCHMARK": "off"},
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        _, stderr = await process.communicate()
        assert process.returncode == 1
        assert f"process {front.process.pid} on " in stderr.decode() and "Traceback" not in stderr.decode()


async def test_the_front_never_loads_torch_or_more_of_the_engine_than_its_graph_checker() -> None:
    heavy = {
        "torch",
        "numpy",
        "darkroom.engine.engine",
        "darkroom.engine.nodes",
        "darkroom.engine.memory",
        "boto3",
        "cryptography",
    }
    code = f"import sys, darkroom.worker.app.serve, darkroom.worker.cli.main; print(sorted({heavy} & set(sys.modules)))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    assert stdout.strip() == b"[]"
