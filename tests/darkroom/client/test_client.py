"""Both clients against a whole front over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from darkroom.client import AsyncClient, Client, Event, JobFailed, Request, RequestRefused
from tests.fakes import draw, fail, paint, steps, wait
from tests.worker.running_front import RunningFront, until


async def test_an_image_by_the_asynchronous_client(front: RunningFront, tmp_path: Path) -> None:
    seen: list[Event] = []
    async with AsyncClient(front.url) as client:
        result = await client.generate(Request.of_workflow(draw(), **{"1.text": "x", "#size": 3}), seen.append)
        saved = await client.save(result.outputs[0], tmp_path / "x.png")
        again = await client.result(result.id)
    assert saved.read_bytes() == b"x" * 3 and result.parameters == {"overrides": {"1.text": "x", "1.size": 3}}
    assert again.status == "completed" and again.files[0].filename == result.files[0].filename
    assert seen[0].status == "queued" and seen[0].job_id == result.id


async def test_the_blocking_client_does_the_same(front: RunningFront, tmp_path: Path) -> None:
    def run() -> None:
        saved = tmp_path / "workflow.json"
        saved.write_text(json.dumps(draw()))
        with Client(front.url) as client:
            assert client.put_workflow("poster", saved, {"word": "1.text"})["version"] == 1
            result = client.generate(Request(stored="poster", inputs={"word": "y"}, has_data=True))
            assert client.fetch(result.outputs[0]) == b"y" * 8
            assert [item["name"] for item in client.workflows()] == ["poster"]
            assert client.delete_workflow("poster@1") == 1
            assert client.convert(saved) == draw()
            assert "Text2Image" in {item["name"] for item in client.modifiers()}

    await asyncio.to_thread(run)


async def test_a_local_file_is_sent_along(front: RunningFront, tmp_path: Path) -> None:
    image = tmp_path / "photo.png"
    carried = PngInfo()
    carried.add_text("prompt", json.dumps(draw("carried")))
    Image.new("RGB", (8, 8)).save(image, pnginfo=carried)
    async with AsyncClient(front.url) as client:
        result = await client.generate(Request.of_workflow(paint(), **{"1.image": image}))
        assert result.files
        assert await client.convert(image) == draw("carried")


async def test_a_job_is_submitted_followed_and_cancelled(front: RunningFront) -> None:
    async with AsyncClient(front.url) as client:
        job = await client.submit(Request.of_workflow(wait()))
        assert not job.has_ended

        async def is_listed() -> bool:
            return [item["id"] for item in (await client.queue())["jobs"]] == [job.id]

        await until(is_listed)
        following = asyncio.create_task(client.wait(job.id))
        assert await client.cancel(job.id) == "cancelled"
        with pytest.raises(JobFailed) as cancelled:
            await following
        assert cancelled.value.result.status == "cancelled"
        with pytest.raises(JobFailed) as failed:
            await client.generate(Request.of_workflow(fail()))
        assert failed.value.result.error is not None and failed.value.result.error["code"] == "node_failed"
        again = await client.result(failed.value.result.id)
        assert again.status == "failed"


async def test_what_is_wrong_is_raised_with_its_fields(front: RunningFront) -> None:
    async with AsyncClient(front.url) as client:
        with pytest.raises(RequestRefused) as raised:
            await client.submit(Request.of_workflow(draw(), **{"1.txt": 1}))
        with pytest.raises(RequestRefused) as unknown:
            await client.result("none")
    assert raised.value.status == 422 and raised.value.problems[0].field == "input.overrides.1.txt"
    assert (unknown.value.status, unknown.value.code) == (404, "job_not_found")


async def test_progress_is_shown(front: RunningFront) -> None:
    percents, last = [], None
    async with AsyncClient(front.url) as client:
        async for event in client.stream(Request.of_workflow(steps(4, hold=2))):
            last = event
            if event.percent:  # seen while the engine waits
                percents.append(event.percent)
                front.engine.go_on.set()
    assert last is not None and last.result is not None and last.status == "completed"
    assert percents and max(percents) <= 100


async def test_the_same_request_never_runs_twice(front: RunningFront) -> None:
    request = Request.of_workflow(draw())
    async with AsyncClient(front.url) as client:
        first, second = await asyncio.gather(client.generate(request), client.generate(request))
    assert first.id == second.id and len(front.engine.runs) == 1
