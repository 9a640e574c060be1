"""The official `runpod` package as the loop of a real front, against a stand-in for RunPod's job server."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conformance.processes import front_process
from tests.conformance.runpod_stand_in import API_KEY, JobServer
from tests.fakes import draw, fail, running_engine, wait
from tests.flow.bodies import workflow
from tests.flow.running_worker import CHECKPOINT
from tests.s3_server import free_ports
from tests.worker.running_front import until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("runpod") is None, reason="pip install 'runpod>=1.12' brings RunPod's package"
)


@pytest.fixture
async def jobs() -> AsyncIterator[JobServer]:
    async with JobServer() as running:
        yield running


@pytest.mark.slow
async def test_an_image_that_came_along_is_drawn_over_and_returned(
    tmp_path: Path, jobs: JobServer, small_checkpoint: Path
) -> None:
    (port,) = free_ports(1)
    base = tmp_path / "base"
    (base / "models" / "checkpoints").mkdir(parents=True)
    (base / "models" / "checkpoints" / CHECKPOINT).hardlink_to(small_checkpoint)
    async with front_process(base, port, CPU="true", PRECISION="fp32", **jobs.environment()) as front:
        image = io.BytesIO()
        Image.new("RGB", (128, 64), "teal").save(image, "PNG")
        loader = {"class_type": "LoadImage", "inputs": {"image": "mine.png"}}
        encoder = {"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["1", 2]}}
        drawn = workflow(n10=loader, n2=encoder)
        images = [{"name": "mine.png", "image": base64.b64encode(image.getvalue()).decode()}]
        jobs.give("job-1", {"workflow": drawn, "images": images})
        result = await jobs.result_of("job-1", seconds=90)
        (returned,) = result["output"]["images"]
        assert returned["type"] == "base64" and returned["filename"].endswith(".png")
        assert Image.open(io.BytesIO(base64.b64decode(returned["data"]))).size == (128, 64)
    assert jobs.late == [] and jobs.keys == {API_KEY}
    log = front.log.read_text()
    assert "job-1" in log and API_KEY not in log


async def test_jobs_go_through_the_pipeline_and_their_clients_see_progress_errors_and_stops(
    tmp_path: Path, jobs: JobServer
) -> None:
    (port,) = free_ports(1)
    async with (
        running_engine(tmp_path) as engine,
        front_process(
            tmp_path / "a", port, ENGINE_URL=engine.url, API_KEYS="shop:planted-key", **jobs.environment()
        ) as front,
    ):
        jobs.give("drawn", {"workflow": draw("hello")})
        (image,) = (await jobs.result_of("drawn"))["output"]["images"]
        assert base64.b64decode(image["data"]) == b"hello" * 8
        jobs.give("ours", {"workflow_json": draw("hello")})
        assert (await jobs.result_of("ours"))["output"]["status"] == "completed"
        jobs.give("fails", {"workflow": fail()})
        failed = await jobs.result_of("fails")
        assert failed["error"] == "Job processing failed"
        assert "Node ID: 1" in failed["output"]["details"][0] and "stopPod" not in failed
        jobs.give("wrong", {"workflow": {"1": {"class_type": "Nope", "inputs": {}}}})
        assert "Nope" in json.dumps(await jobs.result_of("wrong"))
        jobs.give("empty", {"images": []})
        assert (await jobs.result_of("empty")) == {"error": "Missing 'workflow' parameter"}
        jobs.give("slow", {"workflow": wait()})
        await jobs.until_updated("slow")
        await until_begun(engine, "slow-1")
        jobs.stop("slow")
        await until_idle(engine)
        jobs.give("after", {"workflow": draw("again")})
        assert (await jobs.result_of("after"))["output"]["images"]
        assert "slow" not in jobs.results and jobs.late == []
        assert jobs.pings and jobs.updates["slow"][0]["message"]
    assert API_KEY not in front.log.read_text() and "planted" not in front.log.read_text()


async def test_a_job_under_way_ends_before_the_worker_stops_and_no_other_is_taken(
    tmp_path: Path, jobs: JobServer
) -> None:
    (port,) = free_ports(1)
    async with running_engine(tmp_path) as engine:
        async with front_process(tmp_path / "a", port, ENGINE_URL=engine.url, **jobs.environment()) as front:
            jobs.give("last", {"workflow": wait()})
            await until_begun(engine, "last-1")
            front.process.terminate()
            await front.until_stopping()
            engine.release()
            assert await front.process.wait() == 0
        assert (await jobs.result_of("last"))["output"]["images"]
        jobs.give("too-late", {"workflow": draw()})
    assert jobs.taken == ["last"]


@pytest.mark.slow
async def test_a_device_that_is_lost_twice_has_the_worker_replaced(tmp_path: Path, jobs: JobServer) -> None:
    (port,) = free_ports(1)
    async with (
        running_engine(tmp_path) as engine,
        front_process(tmp_path / "a", port, ENGINE_URL=engine.url, **jobs.environment()),
    ):
        jobs.give("lost", {"workflow": wait()})
        for attempt in (1, 2):
            await until_begun(engine, f"lost-{attempt}")
            engine.forget_everything()
        result = await jobs.result_of("lost")
        assert result["stopPod"] is True and "lost twice" in result["error"]


@pytest.mark.slow
async def test_refresh_worker_ends_the_worker_after_one_job(tmp_path: Path, jobs: JobServer) -> None:
    (port,) = free_ports(1)
    environment = jobs.environment() | {"REFRESH_WORKER": "true"}
    async with (
        running_engine(tmp_path) as engine,
        front_process(tmp_path / "a", port, ENGINE_URL=engine.url, **environment) as front,
    ):
        jobs.give("only", {"workflow": draw()})
        assert (await jobs.result_of("only"))["stopPod"] is True
        assert await front.process.wait() == 0


async def until_begun(engine: Any, prompt_id: str) -> None:
    async def has_begun() -> bool:
        return prompt_id in engine.runs

    await until(has_begun, seconds=60)


async def until_idle(engine: Any) -> None:
    async def is_idle() -> bool:
        return bool(engine.is_idle)

    await until(is_idle, seconds=60)
