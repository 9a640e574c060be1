"""Limits of one key or address: over them 429 with the limit's name, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from tests.fakes import FakeEngine, draw, steps, wait
from tests.worker.running_front import RunningFront, running_front, until

FROM_OUTSIDE = {"X-Forwarded-For": "203.0.113.7"}  # through a proxy: callers without a key share one limit
PROBES = ("/live", "/ready", "/health", "/metrics")


@contextlib.asynccontextmanager
async def limited(folder: Path, **settings: Any) -> AsyncIterator[RunningFront]:
    (folder / "engine").mkdir(exist_ok=True)
    async with FakeEngine(folder / "engine") as engine, running_front(folder, engine, **settings) as front:
        yield front


async def send(front: RunningFront, workflow: dict[str, Any], headers: dict[str, str], **fields: Any) -> httpx.Response:
    return await front.http.post("/generate", headers=headers, json={"input": {"workflow_json": workflow, **fields}})


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}", **FROM_OUTSIDE}


def check_refused(answer: httpx.Response, limit: str, value: int, allowed: int) -> None:
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["code"], error["limit"], error["value"], error["allowed"]) == ("limit_reached", limit, value, allowed)


async def test_requests_a_second(tmp_path: Path) -> None:
    async with limited(tmp_path, caller_max_requests_per_second=0.02) as front:
        assert (await front.http.get("/result/none", headers=FROM_OUTSIDE)).status_code == 404
        for path in ("/result/none", "/stream/none", "/queue-info", "/jobs"):
            check_refused(await front.http.get(path, headers=FROM_OUTSIDE), "requests_per_second", 2, 1)
        check_refused(await send(front, draw(), FROM_OUTSIDE), "requests_per_second", 2, 1)
        assert front.engine.runs == []
        for path in PROBES:
            assert (await front.http.get(path, headers=FROM_OUTSIDE)).status_code == 200
        for _ in range(5):  # from this machine itself
            assert (await front.http.get("/result/none")).status_code == 404


async def test_keys_are_counted_apart_and_wrong_ones_as_their_address(tmp_path: Path) -> None:
    settings = {"api_keys": "first,second", "caller_max_requests_per_second": 0.02}
    async with limited(tmp_path, **settings) as front:

        async def status(name: str) -> int:
            return (await front.http.get("/result/none", headers=key(name))).status_code

        assert [await status(name) for name in ("first", "second", "first", "second")] == [404, 404, 429, 429]
        assert [await status(name) for name in ("guessed", "guessed too", "first")] == [401, 429, 429]


async def test_jobs_waiting(tmp_path: Path) -> None:
    async with limited(tmp_path, caller_max_jobs_waiting=2) as front:
        assert (await send(front, wait(), FROM_OUTSIDE, request_id="runs")).status_code == 202
        await front.until_message("runs", "Progress")
        for name in ("second", "third"):
            assert (await send(front, wait(), FROM_OUTSIDE, request_id=name)).status_code == 202
        check_refused(await send(front, draw(), FROM_OUTSIDE), "jobs_waiting", 3, 2)
        assert (await send(front, wait(), FROM_OUTSIDE, request_id="third")).status_code == 202  # attaches
        assert (await send(front, draw(), {}, request_id="mine")).status_code == 202
        await front.http.post("/cancel/second")
        assert (await send(front, draw(), FROM_OUTSIDE, request_id="fourth")).status_code == 202
        for name in ("runs", "third", "mine", "fourth"):
            await front.http.post(f"/cancel/{name}")


async def test_jobs_that_arrive_together_are_counted_together(tmp_path: Path) -> None:
    async with limited(tmp_path, caller_max_jobs_waiting=3, caller_max_jobs_running=1) as front:
        await send(front, wait(), FROM_OUTSIDE, request_id="runs")
        await front.until_message("runs", "Progress")
        sent = await asyncio.gather(*(send(front, wait(), FROM_OUTSIDE, request_id=f"j{i}") for i in range(12)))
        assert sorted(answer.status_code for answer in sent) == [202] * 3 + [429] * 9
        for name in ("runs", *(f"j{i}" for i in range(12))):
            await front.http.post(f"/cancel/{name}")


async def test_a_caller_with_many_jobs_takes_turns_with_the_others(tmp_path: Path) -> None:
    settings = {"api_keys": "many,few", "caller_max_jobs_running": 1}
    async with limited(tmp_path, **settings) as front:
        for number in range(5):
            await send(front, wait(), key("many"), request_id=f"many{number}")
        await front.until_message("many0", "Progress", key("many"))
        for number in range(2):
            await send(front, wait(), key("few"), request_id=f"few{number}")

        async def all_ran() -> bool:
            return len(front.engine.runs) == 7

        front.engine.release_all()
        await until(all_ran)
        turns = [run.removesuffix("-1") for run in front.engine.runs]
        assert turns[:4] == ["many0", "few0", "many1", "few1"]
        assert turns[4:] == ["many2", "many3", "many4"]


async def test_pixels_times_steps_a_minute(tmp_path: Path) -> None:
    per_step = 512 * 512  # the size is not known
    async with limited(tmp_path, caller_max_pixel_steps_per_minute=10 * per_step) as front:
        assert (await send(front, steps(6, hold=1), FROM_OUTSIDE)).status_code == 202  # so it has not ended
        answer = await send(front, steps(6), FROM_OUTSIDE)
        check_refused(answer, "pixel_steps_per_minute", 12 * per_step, 10 * per_step)
        answer = await send(front, steps(11), FROM_OUTSIDE)
        assert answer.status_code == 422
        assert answer.json()["error"]["problems"][0]["allowed"] == {"maximum": 10 * per_step}
        assert (await send(front, steps(11), {})).status_code == 202
        front.engine.go_on.set()


async def test_bytes_stored_also_over_a_restart(tmp_path: Path) -> None:
    limit = {"caller_max_stored_bytes": 30}
    async with limited(tmp_path, **limit) as front:
        assert (await send(front, draw("hello", 8), FROM_OUTSIDE, request_id="first")).status_code == 202
        await front.until("first", "completed")
        check_refused(await send(front, draw(), FROM_OUTSIDE), "stored_bytes", 40, 30)
    async with limited(tmp_path, **limit) as front:
        check_refused(await send(front, draw(), FROM_OUTSIDE), "stored_bytes", 40, 30)
        front.front.services.files.caller_quota.files_removed("first")
        assert (await send(front, draw(), FROM_OUTSIDE)).status_code == 202


async def test_runpods_form_is_no_way_around_the_limits(tmp_path: Path) -> None:
    async with limited(tmp_path, caller_max_jobs_waiting=1, caller_max_jobs_running=1) as front:
        body = {"input": {"workflow_json": wait()}}
        first = await front.http.post("/run", json=body, headers=FROM_OUTSIDE)
        await front.until_message(first.json()["id"], "Progress")
        second = await front.http.post("/run", json=body, headers=FROM_OUTSIDE)
        assert (first.status_code, second.status_code) == (200, 200)
        third = await front.http.post("/run", json=body, headers=FROM_OUTSIDE)
        assert third.status_code == 429 and "retry-after" in third.headers
        for answer in (first, second):
            await front.http.post(f"/cancel/{answer.json()['id']}")
