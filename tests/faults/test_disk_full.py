"""The disk is full: nothing is acknowledged that could not be kept, and what was is finished when there is room."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine, wait
from tests.fakes import draw as draw_one
from tests.faults.nodes import draw
from tests.faults.rig import Rig, a_rig
from tests.worker.running_front import running_front, until

SIZE_MB = 8


class SmallDisk:
    """A file system of a few megabytes that can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for piece_bytes in (2**16, 2**10, 1):
                try:
                    while True:
                        file.write(b"x" * piece_bytes)
                except OSError:
                    continue

    def empty(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", path], capture_output=True)
    if made.returncode != 0:
        pytest.skip("file systems may not be mounted here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    folder = tmp_path / "engine"
    folder.mkdir()
    async with FakeEngine(folder) as engine:
        yield engine


async def test_a_full_disk_refuses_new_jobs_and_keeps_the_running_one(disk: SmallDisk, engine: FakeEngine) -> None:
    async def has_begun() -> bool:
        return bool(engine.runs)

    async with running_front(disk.path, engine) as front:
        await front.http.post("/generate", json={"input": {"request_id": "running", "workflow_json": wait()}})
        await until(has_begun)
        disk.fill()
        body = {"input": {"request_id": "refused", "workflow_json": draw_one()}}
        refusal = await front.http.post("/generate", json=body)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "disk_low")
        assert int(refusal.headers["retry-after"]) >= 1
        assert (await front.http.get("/result/refused")).status_code == 404
        disk.empty()
        engine.release()
        assert (await front.until("running", "completed"))["output"]
        assert (await front.http.post("/generate", json=body)).status_code == 202  # the same again is a job now
        await front.until("refused", "completed")


async def test_reads_answer_on_a_full_disk_and_readiness_names_it(disk: SmallDisk, engine: FakeEngine) -> None:
    async def ready() -> tuple[int, str]:
        reply = await front.http.get("/ready")
        return reply.status_code, reply.json().get("reason", "")

    async def is_ready() -> bool:
        return (await ready())[0] == 200

    async def has_begun() -> bool:
        return bool(engine.runs)

    async def has_failed() -> bool:
        return "cannot be written" in (await ready())[1]

    async with running_front(disk.path, engine) as front:
        await front.http.post("/generate", json={"input": {"request_id": "running", "workflow_json": wait()}})
        await until(has_begun)
        disk.fill()
        engine.release()
        await until(has_failed)
        of_job = ("/result/running", "/status/running", "/api/v2/jobs/running", "/api/jobs/running")
        for path in (*of_job, "/jobs", "/queue-info"):
            reply = await front.http.get(path)
            assert reply.status_code == 200, (path, reply.text)
            assert "COMPLETED" not in reply.text and '"completed"' not in reply.text, "no end before it is on disk"
        async with front.http.stream("GET", "/stream/running") as stream:
            assert '"final_result"' not in await anext(stream.aiter_text())
        assert (await front.http.post("/cancel/running")).status_code in (200, 503)
        disk.empty()
        await front.until("running", "completed", "failed", "cancelled")
        await until(is_ready)
        assert (await front.sync(draw_one())).status_code == 200


async def test_an_output_that_does_not_fit_fails_its_job_by_name(disk: SmallDisk, engine: FakeEngine) -> None:
    async with running_front(disk.path, engine) as front:
        # Every change of a job is logged with its prompt, so a long prompt alone could fill the disk.
        large = draw_one(text="x" * (SIZE_MB * 2**14), size=64)  # SIZE_MB MiB: does not fit beside the database
        reply = await front.sync(large, request_id="large")
        assert (reply.status_code, reply.json()["status"]) == (500, "failed")
        assert "space" in reply.json()["error"]["message"].lower()
        assert (await front.sync(draw_one())).status_code == 200


@pytest.mark.slow
async def test_killed_while_the_disk_is_full_everything_goes_on_when_there_is_room(
    tmp_path: Path, disk: SmallDisk
) -> None:
    async with a_rig(tmp_path / "base", STATE_DIRECTORY=str(disk.path / "state")) as rig:
        await kill_while_full(rig, disk)


async def kill_while_full(rig: Rig, disk: SmallDisk) -> None:
    await rig.start()
    await rig.until_ready()
    for job_id in ("running", "waiting"):
        await rig.submit(job_id, draw(job_id, seconds=0.5))
    await rig.until_begun("running")
    disk.fill()
    await rig.until_begun("waiting")
    await rig.kill_front()
    disk.empty()

    await rig.start()
    await rig.until_ready()
    for job_id in ("running", "waiting"):
        assert (await rig.until(job_id))["status"] == "completed"
