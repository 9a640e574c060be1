"""The store and the receivers fail in every way they can: jobs end, files stay fetchable, what is owed comes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.engines.supervisor import free_port
from tests.fakes import FakeEngine, draw
from tests.faults.peers import Peers, running_peers
from tests.worker.running_front import RunningFront, running_front


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    async with running_peers() as peers:
        yield peers


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    folder = tmp_path / "engine"
    folder.mkdir()
    async with (
        FakeEngine(folder) as engine,
        running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front,
    ):
        yield front


async def send(front: RunningFront, job_id: str, **fields: Any) -> dict[str, Any]:
    """The result of a job that was waited for."""
    reply = await front.sync(draw(job_id), request_id=job_id, **fields)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def stays_fetchable(front: RunningFront, result: dict[str, Any], words: str) -> None:
    (output,) = result["output"]
    assert result["status"] == "completed"
    assert words in output["upload_error"]
    assert (await front.http.get(output["url"])).content == b"x" * 8


async def send_with_store(front: RunningFront, s3: dict[str, Any]) -> dict[str, Any]:
    reply = await front.sync(draw("x"), s3=s3)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_a_store_that_is_down_leaves_the_file_fetchable(front: RunningFront, peers: Peers) -> None:
    s3 = peers.s3 | {"endpoint_url": f"http://127.0.0.1:{free_port()}"}
    await stays_fetchable(front, await send_with_store(front, s3), "")


async def test_a_store_that_refuses_leaves_the_file_fetchable(front: RunningFront, peers: Peers) -> None:
    peers.store.status = 403
    await stays_fetchable(front, await send_with_store(front, peers.s3), "403")


async def test_a_store_whose_name_is_unknown_leaves_the_file_fetchable(front: RunningFront, peers: Peers) -> None:
    s3 = peers.s3 | {"endpoint_url": "http://nowhere.invalid"}
    await stays_fetchable(front, await send_with_store(front, s3), "")


async def test_a_slow_store_holds_up_its_own_job_and_no_other(front: RunningFront, peers: Peers) -> None:
    peers.store.hold()
    slow = asyncio.create_task(send(front, "slow", s3=peers.s3))
    await peers.store.until_asked()
    for number in range(3):
        await send(front, f"other-{number}")
    assert (await front.http.get("/result/slow")).json()["status"] == "generated"
    peers.store.release()
    assert "upload_error" not in (await slow)["output"][0]


async def test_a_job_whose_upload_hangs_can_be_cancelled(front: RunningFront, peers: Peers) -> None:
    peers.store.hold()
    await front.http.post("/generate", json={"input": {"workflow_json": draw(), "request_id": "a", "s3": peers.s3}})
    await peers.store.until_asked()
    reply = await front.http.post("/cancel/a")
    assert reply.json() == {"message": "Request cancelled", "status": "cancelled"}
    assert (await front.http.get("/result/a")).status_code == 499


async def test_a_webhook_that_is_refused_comes_again_under_the_same_id(front: RunningFront, peers: Peers) -> None:
    peers.receiver.status = 500
    await send(front, "a", webhook=peers.webhook)
    await peers.receiver.until_asked()
    peers.receiver.status = 200
    (taken,) = await peers.until_received("a")
    assert {receipt.webhook_id for receipt in peers.receipts} == {taken.webhook_id}
    assert len(peers.receipts) == 2


async def test_a_webhook_that_is_not_answered_in_time_comes_again(front: RunningFront, peers: Peers) -> None:
    peers.receiver.hold()
    await send(front, "a", webhook=peers.webhook | {"timeout": 0.3})
    await peers.receiver.until_asked(times=2)
    peers.receiver.release()
    assert len({receipt.webhook_id for receipt in await peers.until_received("a")}) == 1


async def test_receivers_that_hang_or_are_unknown_hold_up_no_other_webhook(front: RunningFront, peers: Peers) -> None:
    await send(front, "unknown", webhook={"url": "http://nowhere.invalid/hook"})
    await send(front, "refused", webhook={"url": f"http://127.0.0.1:{free_port()}/hook"})
    for number in range(5):
        await send(front, f"good-{number}", webhook=peers.webhook)
    for number in range(5):
        await peers.until_received(f"good-{number}")
    assert (await front.http.get("/health")).status_code == 200


async def test_a_store_that_hangs_with_many_files_holds_up_no_other_job(front: RunningFront, peers: Peers) -> None:
    peers.store.hold()
    files = {str(number): draw(str(number))["1"] for number in range(8)}
    slow = [asyncio.create_task(front.sync(files, s3=peers.s3)) for _ in range(4)]
    await peers.store.until_asked(times=8)
    async with asyncio.timeout(60):
        await send(front, "other")
    peers.store.release()
    assert {(await task).status_code for task in slow} == {200}
