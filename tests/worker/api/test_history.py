"""GET /metrics/history: the last day of a worker, for its operator."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import FakeEngine, draw
from tests.worker.api.test_openapi import assert_as_declared
from tests.worker.running_front import RunningFront, running_front


async def test_jobs_that_ended_and_requests_that_were_refused_are_in_the_history(front: RunningFront) -> None:
    assert (await front.sync(draw())).status_code == 200
    assert (await front.sync({"1": {"class_type": "None"}})).status_code == 422
    await front.front.services.observation.history.record()
    reply = await front.http.get("/metrics/history", params={"hours": 1, "points": 2})
    assert_as_declared(reply, "get", "/metrics/history", (await front.http.get("/openapi.json")).json())
    found = {(item["name"], *item["labels"].values()): item["values"] for item in reply.json()["series"]}
    assert found["darkroom_jobs_ended_total", "completed"] == [None, 1.0]
    assert found["darkroom_requests_refused_total", "request_rejected"] == [None, 1.0]
    assert found["darkroom_job_wait_seconds_count",] == [None, 1.0]
    assert found["darkroom_queue_jobs",] == [None, 0.0]
    assert found["darkroom_memory_total_bytes",][1] > 0
    assert reply.json()["interval_seconds"] == 1800


async def test_lengths_beyond_a_day_are_refused(front: RunningFront) -> None:
    for wrong in ({"hours": 25}, {"hours": 0}, {"points": 0}, {"points": 5000}):
        assert (await front.http.get("/metrics/history", params=wrong)).status_code == 422


async def test_the_history_is_for_operators(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="shop:abcdef:submit+read,ops:ghijkl:admin") as front:
        assert (await front.http.get("/metrics/history")).status_code == 401
        for secret, status in (("abcdef", 403), ("ghijkl", 200)):
            key = {"Authorization": f"Bearer {secret}"}
            assert (await front.http.get("/metrics/history", headers=key)).status_code == status
