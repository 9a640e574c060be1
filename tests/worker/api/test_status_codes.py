"""Every row of the contract's table from situation to status, over real HTTP: what is asked, and what is answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.contract.graph.cost import UNIT_COST
from tests.fakes import FakeEngine, draw, fail, wait
from tests.worker.running_front import RunningFront, running_front, until

AUTH = {"cost": "100", "endpoint": "e", "reqnum": 1, "request_idx": 1, "signature": "", "url": "http://x"}
OUT_OF_MEMORY = {"1": {"class_type": "OutOfMemory", "inputs": {}}}


async def in_an_envelope(front: RunningFront, workflow: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"auth_data": AUTH, "payload": {"input": {"workflow_json": workflow, **fields}}}
    return await front.http.post("/generate/sync", json=body)


def assert_says_come_again(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert int(response.headers["Retry-After"]) >= 1
    assert response.json()["status"] == "failed"


async def test_422_for_whatever_is_wrong_with_a_request_and_no_time_of_the_gpu(front: RunningFront) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"workflow_json": {}},
        {"workflow_json": "text"},
        {"modifier": "Text3Image"},
        {"modifier": "Text2Image", "modifications": {"width": "wide"}},
        {"workflow_json": {"1": {"class_type": "NoSuchNode", "inputs": {}}}},
        {"workflow_json": {**draw(), "2": draw(size=99)["1"]}},  # one good output does not excuse a bad one
        {"workflow_json": fail("a missing file")},
        {"workflow_json": draw(), "priority": 11},
        {"workflow_json": draw(), "output": {"format": "gif"}},
    ]
    for given in wrong:
        for route in ("/generate", "/generate/sync", "/generate/stream"):
            response = await front.http.post(route, json={"input": given})
            assert response.status_code == 422, (given, response.text)
            problems = response.json()["error"]["problems"]
            assert all(problem.get("field") or problem.get("node_id") for problem in problems)
    assert front.engine.runs == []


async def test_503_with_its_id_for_whoever_waits_for_a_job_that_is_left_for_the_next_start(front: RunningFront) -> None:
    waiting = asyncio.create_task(front.sync(wait(), request_id="kept"))
    await front.until_message("kept", "Progress")
    await front.front.services.jobs.pipeline.drain(0)
    response = await waiting
    assert_says_come_again(response, 503, "draining")
    assert response.json()["id"] == "kept"


@pytest.mark.parametrize("depth", [900, 5000])
@pytest.mark.parametrize("filling", ["", "x" * 300_000])  # a large body goes another way
async def test_422_for_a_body_that_is_nested_too_deeply(front: RunningFront, depth: int, filling: str) -> None:
    nested = "[" * depth + "]" * depth
    workflow = f'{{"1": {{"class_type": "Draw", "inputs": {{"text": {nested}, "size": 8}}}}}}'
    for route, field in (("/generate", "workflow_json"), ("/runsync", "workflow")):
        body = f'{{"input": {{"{field}": {workflow}, "filling": "{filling}"}}}}'
        response = await front.http.post(route, content=body)
        assert response.status_code == 422, (route, response.text[:500])
    assert front.engine.runs == []


async def test_404_and_405_for_what_is_no_route_in_the_form_of_every_refusal(front: RunningFront) -> None:
    unknown, wrong = await front.http.get("/generat"), await front.http.get("/generate/sync")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "route_not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["Allow"] == "POST" and wrong.json()["error"]["allowed"] == ["POST"]
    assert unknown.json()["status"] == wrong.json()["status"] == "failed"


async def test_whoever_only_wants_to_know_may_ask_by_head(front: RunningFront) -> None:
    (output,) = (await front.sync(draw("ab", 2))).json()["output"]
    for path, num_bytes in ((output["url"], 4), ("/live", 18), ("/ready", 18)):
        response = await front.http.head(path)
        assert (response.status_code, response.headers["content-length"]) == (200, str(num_bytes)), path


async def test_the_headline_of_a_refusal_names_the_field(front: RunningFront) -> None:
    for given, named in (({"priority": 11}, "priority: "), ({"output": {"format": "gif"}}, "output.format: ")):
        response = await front.http.post("/generate", json={"input": {"workflow_json": draw(), **given}})
        assert response.json()["message"].startswith(named)


async def test_404_for_an_unknown_id_and_200_for_one_that_waits(front: RunningFront) -> None:
    for path in ("/result/nobody", "/stream/nobody"):
        assert (await front.http.get(path)).status_code == 404
    assert (await front.http.post("/cancel/nobody")).status_code == 404
    for name in ("a", "b", "c"):
        await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": name}})
    assert (await front.http.get("/result/c")).status_code == 200
    for name in ("c", "b", "a"):
        assert (await front.http.post(f"/cancel/{name}")).status_code == 200


async def test_the_same_request_attaches_and_replays_on_every_route_and_409_for_another_body(
    front: RunningFront,
) -> None:
    body = {"input": {"workflow_json": wait(), "request_id": "same"}}
    routes = ("/generate", "/generate/sync", "/generate/stream", "/generate/sync")
    asked = [asyncio.create_task(front.http.post(route, json=body)) for route in routes]
    await asked[0]
    front.engine.release_all()
    replies = await asyncio.gather(*asked)
    assert [reply.status_code for reply in replies] == [202, 200, 200, 200]
    replayed = await front.http.post("/generate", json=body)
    assert (replayed.status_code, replayed.json()["status"]) == (200, "completed")
    assert front.engine.runs == ["same-1"]
    other = {"input": {"workflow_json": draw(), "request_id": "same"}}
    for route in routes:
        assert (await front.http.post(route, json=other)).status_code == 409
    by_key = await front.http.post(
        "/generate/sync", json={"input": {"workflow_json": draw()}}, headers={"Idempotency-Key": "same"}
    )
    assert by_key.status_code == 409


async def test_503_with_retry_after_when_nothing_more_is_taken_now(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, max_queue_size=1) as front:
        await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "only"}})
        for route in ("/generate", "/generate/sync", "/generate/stream"):
            response = await front.http.post(route, json={"input": {"workflow_json": draw()}})
            assert_says_come_again(response, 503, "queue_full")
        await front.http.post("/cancel/only")
        front.front.services.jobs.gate.drain()
        assert_says_come_again(await front.sync(draw()), 503, "draining")


@pytest.mark.parametrize(
    ("setting", "code"), [("min_free_disk_bytes", "disk_low"), ("min_free_memory_bytes", "memory_low")]
)
async def test_503_below_a_floor(tmp_path: Path, engine: FakeEngine, setting: str, code: str) -> None:
    floor: dict[str, Any] = {setting: 2**60}
    async with running_front(tmp_path, engine, waits_until_ready=False, **floor) as front:

        async def is_up() -> bool:
            said: str = (await front.sync(draw())).json()["error"]["code"]
            return said != "not_ready"

        await until(is_up)
        assert_says_come_again(await front.sync(draw()), 503, code)
        assert (await front.http.get("/ready")).status_code == 503


async def test_503_before_an_engine_is_up(tmp_path: Path, engine: FakeEngine) -> None:
    engine.is_down = True
    async with running_front(tmp_path, engine, waits_until_ready=False) as front:
        assert_says_come_again(await front.sync(draw()), 503, "not_ready")
        assert (await front.http.get("/ready")).status_code == 503


async def test_429_when_the_wait_would_be_too_long(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, max_queue_time=1500) as front:
        front.front.services.jobs.run_clock.add(seconds=1000.0, cost=UNIT_COST)
        for name in ("a", "b"):
            await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": name}})
        assert_says_come_again(await front.sync(draw()), 429, "wait_too_long")
        for name in ("b", "a"):
            await front.http.post(f"/cancel/{name}")


async def test_500_for_a_node_that_raises_and_422_in_an_envelope(front: RunningFront) -> None:
    for response, status in ((await front.sync(fail()), 500), (await in_an_envelope(front, fail()), 422)):
        result = response.json()
        assert (response.status_code, result["status"]) == (status, "failed")
        error = result["error"]
        assert (error["node_id"], error["class_type"], error["error_type"]) == ("1", "Fail", "ValueError")


async def test_500_when_memory_is_short_also_on_the_retry_and_422_in_an_envelope(front: RunningFront) -> None:
    response = await front.sync(OUT_OF_MEMORY, request_id="large")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "out_of_memory")
    assert front.engine.runs == ["large-1", "large-2"]
    assert (await in_an_envelope(front, OUT_OF_MEMORY)).status_code == 422


async def test_502_when_the_engine_is_lost_twice(front: RunningFront) -> None:
    running = asyncio.create_task(front.sync(wait(), request_id="unlucky"))
    for attempt in (1, 2):
        await until_running(front, f"unlucky-{attempt}")
        front.engine.forget_everything()
        await front.engine.drop_sockets()
    response = await running
    assert (response.status_code, response.json()["status"]) == (502, "failed")
    assert (await front.http.get("/result/unlucky")).status_code == 502
    assert (await front.sync(draw())).status_code == 200


async def until_running(front: RunningFront, prompt_id: str) -> None:
    async def has_begun() -> bool:
        return prompt_id in front.engine.runs

    await until(has_begun)
    await front.until_message(prompt_id.rpartition("-")[0], "Progress")


async def test_504_for_a_job_over_its_time_limit_and_422_in_an_envelope(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, job_timeout=0.2) as front:
        for response, status in ((await front.sync(wait()), 504), (await in_an_envelope(front, wait()), 422)):
            assert (response.status_code, response.json()["status"]) == (status, "timeout")

        async def goes_on() -> bool:  # within the same limit
            return (await front.sync(draw())).status_code == 200

        await until(goes_on)


async def test_499_for_a_cancelled_job_on_every_route_that_shows_it(front: RunningFront) -> None:
    waiting = asyncio.create_task(front.sync(wait(), request_id="gone"))
    await front.until_message("gone", "Progress")
    for _ in range(2):  # twice is no error
        reply = await front.http.post("/cancel/gone")
        assert (reply.status_code, reply.json()["status"]) == (200, "cancelled")
    shown = [await waiting, await front.http.get("/result/gone"), await front.sync(wait(), request_id="gone")]
    assert [(reply.status_code, reply.json()["status"]) for reply in shown] == [(499, "cancelled")] * 3


async def test_a_job_can_be_cancelled_in_every_state_and_ends_as_cancelled(front: RunningFront) -> None:
    waits = {"running": "Progress", "at the engine": "Preprocessing complete", "in the line": "Preprocessing complete"}
    names = [words.replace(" ", "-") for words in waits]
    for name, words in zip(names, waits.values(), strict=True):
        await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": name}})
        await front.until_message(name, words)
    for name in reversed(names):
        assert (await front.http.post(f"/cancel/{name}")).json()["status"] == "cancelled"
        assert (await front.http.get(f"/result/{name}")).status_code == 499
    at_once = asyncio.create_task(
        front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "new"}})
    )
    await at_once
    assert (await front.http.post("/cancel/new")).json()["status"] == "cancelled"
    assert (await front.sync(draw())).status_code == 200


async def test_200_with_upload_error_when_a_store_fails_and_the_file_stays(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, allowed_private_hosts="127.0.0.1") as front:
        store = {"access_key_id": "a", "secret_access_key": "b", "bucket_name": "c", "connect_attempts": 1}
        response = await front.sync(draw("ab", 1), s3={**store, "endpoint_url": "http://127.0.0.1:1"})
        (output,) = response.json()["output"]
        assert (response.status_code, response.json()["status"]) == (200, "completed")
        assert output["upload_error"]
        assert (await front.http.get(output["url"])).text == "ab"
