"""The worker is killed exactly while a job fetches, waits, runs, is collected, delivered, reported: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.dying_front import POINTS
from tests.faults.nodes import draw
from tests.faults.peers import Peers, running_peers
from tests.faults.rig import UNREACHABLE, Rig, a_rig

pytestmark = pytest.mark.timeout(600)  # several starts of front and engine, on a machine that may be busy

FEW = ("acknowledging", "webhook sent")
OTHERS = tuple(point for point in POINTS if point not in FEW)
RUNNING = frozenset({"running", "sent to the engine", "collected"})


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    async with running_peers() as peers:
        yield peers


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as rig:
        yield rig


@pytest.mark.parametrize("points", [FEW, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["few", "others"])
async def test_killed_at_each_point_of_its_way_a_job_ends_once_with_its_webhook(
    rig: Rig, peers: Peers, points: Sequence[str]
) -> None:
    last = ""
    for point in (*points, ""):
        await rig.start(dies_at=point)
        await rig.until_ready()
        if last:
            await ends_well(rig, peers, last)
        if point:
            rig.let_die()
            try:
                status, reply = await rig.post("/generate", **request(point, peers))
                assert status == 202, reply
            except UNREACHABLE:
                assert point == "acknowledging"
            await rig.until_dead()
        last = point


async def ends_well(rig: Rig, peers: Peers, point: str) -> None:
    """Check from every side that the job sent before the front died at `point` completes."""
    job_id = request(point, peers)["job_id"]
    result = await rig.until(job_id)
    assert result["status"] == "completed", result
    assert rig.num_begun(job_id) <= (2 if point in RUNNING else 1), point
    assert [content for content in peers.objects.values() if content == job_id.encode()] == [job_id.encode()], point
    receipts = await peers.until_received(job_id)
    assert {receipt.status for receipt in receipts} == {"completed"}
    assert len({receipt.webhook_id for receipt in receipts}) == 1
    # The client sends the same again, as one does that has lost its connection: it is the same job.
    status, again = await rig.post("/generate/sync", **request(point, peers))
    assert (status, again["timings"]) == (200, result["timings"])
    assert (await rig.get("/health"))[0] == 200


def request(point: str, peers: Peers) -> dict[str, Any]:
    job_id = point.replace(" ", "-")
    workflow = draw(job_id, image_url=peers.image_url)
    return {"job_id": job_id, "workflow": workflow, "s3": peers.s3, "webhook": peers.webhook}


@pytest.mark.slow
async def test_killed_while_it_fetches_a_job_fetches_again(rig: Rig, peers: Peers) -> None:
    peers.source.hold()
    await rig.start()
    await rig.until_ready()
    await rig.submit("one", draw("one", image_url=peers.image_url))
    await peers.source.until_asked()
    await rig.kill_front()
    peers.source.release()

    await rig.start()
    assert (await rig_result(rig, "one"))["status"] == "completed"
    assert peers.source.num_asked == 2
    assert rig.num_begun("one") == 1


@pytest.mark.slow
async def test_killed_with_one_running_and_others_waiting_only_the_running_one_is_drawn_twice(rig: Rig) -> None:
    await rig.start()
    await rig.until_ready()
    for name in ("running", "second", "third"):
        await rig.submit(name, draw(name, seconds=0.5))
    await rig.until_begun("running")
    while not (await rig.until("second", "processing"))["message"].endswith("Queued for generation."):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await rig.kill_front()

    await rig.start()
    for name in ("running", "second", "third"):
        assert (await rig_result(rig, name))["status"] == "completed"
    assert [rig.num_begun(name) for name in ("running", "second", "third")] == [2, 1, 1]


@pytest.mark.slow
async def test_when_only_the_engine_is_killed_the_waiting_ones_lose_no_attempt(rig: Rig) -> None:
    await rig.start()
    await rig.until_ready()
    for name in ("running", "second"):
        await rig.submit(name, draw(name, seconds=0.5))
    for attempt in (1, 2):
        await rig.until_begun("running", times=attempt)
        rig.kill_engine()
    failed = await rig.until("running")
    assert (failed["status"], failed["error"]["status"]) == ("failed", 502)
    assert (await rig.until("second"))["status"] == "completed"
    assert rig.num_begun("second") == 1


@pytest.mark.slow
async def test_killed_while_outputs_are_collected_a_job_has_each_of_them_once(rig: Rig) -> None:
    await rig.start()
    await rig.until_ready()
    await rig.submit("many", draw("many", num_files=2000))
    folder = rig.base / "state" / "jobs" / "many"
    while not folder.exists() or not any(folder.iterdir()):
        assert rig.is_running
    await rig.kill_front()
    assert len(list(folder.iterdir())) < 2000

    await rig.start()
    result = await rig_result(rig, "many")
    assert result["status"] == "completed"
    assert len({record["filename"] for record in result["output"]}) == 2000
    assert len(list(folder.iterdir())) == 2000


@pytest.mark.slow
async def test_killed_while_it_uploads_a_job_is_uploaded_and_not_drawn_again(rig: Rig, peers: Peers) -> None:
    peers.store.hold()
    await rig.start()
    await rig.until_ready()
    await rig.submit("one", draw("one"), s3=peers.s3)
    await peers.store.until_asked()
    assert (await rig.result("one"))["status"] == "generated"
    await rig.kill_front()
    peers.store.release()
    peers.objects.clear()

    await rig.start()
    result = await rig_result(rig, "one")
    assert result["status"] == "completed"
    assert "upload_error" not in result["output"][0]
    assert list(peers.objects.values()) == [b"one"]
    assert rig.num_begun("one") == 1


@pytest.mark.slow
async def test_sigterm_while_an_upload_hangs_ends_the_front_and_the_next_one_delivers(rig: Rig, peers: Peers) -> None:
    peers.store.hold()
    await rig.start(DRAIN_TIMEOUT="0.5")
    await rig.until_ready()
    await rig.submit("one", draw("one"), s3=peers.s3)
    await rig.submit("large", draw("large", megabytes=9), s3=peers.s3)
    await peers.store.until_asked(times=2)
    assert await rig.stop() == 0
    peers.store.release()

    await rig.start()
    for job_id in ("one", "large"):
        assert "upload_error" not in (await rig_result(rig, job_id))["output"][0]
        assert rig.num_begun(job_id) == 1


@pytest.mark.slow
async def test_killed_while_a_webhook_goes_out_it_is_sent_again_under_the_same_id(rig: Rig, peers: Peers) -> None:
    peers.receiver.hold()
    await rig.start()
    await rig.until_ready()
    await rig.submit("one", draw("one"), webhook=peers.webhook)
    await peers.receiver.until_asked()
    await rig.kill_front()
    peers.receiver.release()

    await rig.start()
    receipts = await peers.until_received("one", times=2)  # the held one was received after all
    assert len({receipt.webhook_id for receipt in receipts}) == 1
    assert (await rig_result(rig, "one"))["status"] == "completed"


async def rig_result(rig: Rig, job_id: str) -> dict[str, Any]:
    await rig.until_ready()
    return await rig.until(job_id)
