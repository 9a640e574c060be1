"""The generate routes end to end against a small engine: envelopes, refusals, streams, cancelling, repetition."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from darkroom.host.distribution import DISTRIBUTION
from darkroom.worker.app.application import create_app
from tests.fakes import FakeEngine, draw, fail, steps, wait
from tests.worker.running_front import RunningFront, running_front, until


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path, engine, sync_grace_seconds=0.2) as front:
        yield front


async def test_a_sync_request_gives_the_whole_envelope(front: RunningFront) -> None:
    response = await front.sync(draw("ab", 2), request_id="one")
    result = response.json()
    assert response.status_code == 200
    assert set(result) == {"id", "message", "status", "comfyui_response", "output", "timings"}
    assert (result["id"], result["status"], result["message"]) == ("one", "completed", "Processing complete.")
    assert set(result["timings"]) == {
        *("queued_at_ms", "preprocess_ms", "wait_ms", "generation_ms"),
        *("postprocess_ms", "completed_at_ms", "total_ms"),
    }
    (output,) = result["output"]
    assert {"filename", "local_path", "subfolder", "type", "node_id", "output_type", "url"} <= set(output)
    assert (await front.http.get(output["url"])).text == "abab"


async def test_base64_comes_by_field_and_by_header(front: RunningFront) -> None:
    by_field = (await front.sync(draw("a", 1), return_outputs_as_base64=True)).json()
    by_header = await front.http.post(
        "/generate/sync", json={"input": {"workflow_json": draw("a", 1)}}, headers={"X-Return-Outputs-As-Base64": "yes"}
    )
    assert by_field["output"][0]["data"] == by_header.json()["output"][0]["data"] == "YQ=="


async def test_an_async_request_is_accepted_and_its_result_can_be_asked_for(front: RunningFront) -> None:
    response = await front.http.post("/generate", json={"input": {"workflow_json": draw(), "request_id": "later"}})
    assert response.status_code == 202
    assert (response.json()["status"], response.json()["message"]) == ("pending", "Request accepted")
    assert (await front.until("later", "completed"))["output"]


async def test_a_stream_ends_with_the_result_and_its_ids_only_grow(front: RunningFront) -> None:
    response = await front.http.post("/generate/stream", json={"input": {"workflow_json": draw()}})
    ids = [int(line[4:]) for line in response.text.splitlines() if line.startswith("id: ")]
    assert ids == sorted(ids)
    assert '"status": "queued"' in response.text.splitlines()[1]
    assert '"status": "final_result"' in response.text


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "input"),
        ({"workflow_json": draw(), "modifier": "Text2Image"}, "input"),
        ({"modifier": "Nope"}, "input.modifier"),
        ({"modifier": "Text2Image", "modifications": {"steps": -1}}, "input.modifications.steps"),
        ({"workflow_json": draw(size=99)}, "size"),
        ({"workflow_json": {"1": {"class_type": "Draw", "inputs": {"text": "a"}}}}, "size"),
    ],
)
async def test_bad_input_is_422_with_its_field_and_never_reaches_the_engine(
    front: RunningFront, given: dict[str, object], field: str
) -> None:
    response = await front.http.post("/generate/sync", json={"input": given})
    problems = response.json()["error"]["problems"]
    assert response.status_code == 422
    assert field in [problem.get("field") for problem in problems]
    assert front.engine.runs == []


async def test_every_problem_of_a_workflow_is_reported_with_its_node_and_what_is_allowed(front: RunningFront) -> None:
    workflow = {"1": draw(size=99)["1"], "2": {"class_type": "Missing", "inputs": {}}, "3": fail("other")["1"]}
    problems = (await front.sync(workflow)).json()["error"]["problems"]
    assert {problem["node_id"] for problem in problems} == {"1", "2", "3"}
    allowed = {problem["node_id"]: problem.get("allowed") for problem in problems}
    assert allowed["1"] == {"type": "INT", "min": 1, "max": 64}
    assert allowed["3"] == ["ValueError", "BadModelFile", "DeviceLost"]


async def test_a_body_that_is_no_json_is_422(front: RunningFront) -> None:
    response = await front.http.post("/generate/sync", content=b"{not json")
    assert response.status_code == 422
    assert response.json()["error"]["problems"][0]["message"] == "invalid JSON"


async def test_a_node_that_raises_is_500_with_node_class_and_type(front: RunningFront) -> None:
    response = await front.sync(fail())
    error = response.json()["error"]
    assert response.status_code == 500
    assert response.json()["message"].startswith("Generation failed: ")
    assert (error["node_id"], error["class_type"], error["error_type"]) == ("1", "Fail", "ValueError")


async def test_a_corrupt_model_file_is_the_callers_fault(front: RunningFront) -> None:
    assert (await front.sync(fail("BadModelFile"))).status_code == 422


AUTH = {"cost": "100", "endpoint": "e", "reqnum": 1, "request_idx": 1, "signature": "", "url": "http://x"}


async def test_vasts_envelope_is_taken_and_a_node_failure_in_it_is_422_with_the_same_result(
    front: RunningFront,
) -> None:
    done = await front.http.post(
        "/generate/sync", json={"auth_data": AUTH, "payload": {"input": {"workflow_json": draw()}}}
    )
    assert (done.status_code, done.json()["status"]) == (200, "completed")
    body = {"auth_data": AUTH, "payload": {"input": {"workflow_json": fail()}}}
    failed = await front.http.post("/generate/sync", json=body)
    assert (failed.status_code, failed.json()["error"]["code"]) == (422, "node_failed")


async def test_half_an_envelope_is_answered_as_vasts_own_worker_does(front: RunningFront) -> None:
    response = await front.http.post("/generate/sync", json={"auth_data": AUTH})
    assert (response.status_code, response.json()) == (422, {"payload": "field missing"})


async def test_an_unknown_id_is_404(front: RunningFront) -> None:
    response = await front.http.get("/result/nobody")
    assert response.status_code == 404
    assert (response.json()["status"], response.json()["message"]) == ("failed", "Request ID not found")
    assert (await front.http.post("/cancel/nobody")).status_code == 404


async def test_the_same_id_and_body_attach_and_replay_and_run_once(front: RunningFront) -> None:
    twice = await asyncio.gather(*(front.sync(draw(), request_id="same") for _ in range(4)))
    again = await front.sync(draw(), request_id="same")
    assert [reply.status_code for reply in [*twice, again]] == [200] * 5
    assert front.engine.runs == ["same-1"]


async def test_the_same_id_with_another_body_is_409(front: RunningFront) -> None:
    await front.sync(draw("a"), request_id="same")
    assert (await front.sync(draw("b"), request_id="same")).status_code == 409
    assert len(front.engine.runs) == 1


async def test_an_idempotency_key_stands_for_a_request_id(front: RunningFront) -> None:
    body = {"input": {"workflow_json": draw()}}
    for _ in range(2):
        reply = await front.http.post("/generate/sync", json=body, headers={"Idempotency-Key": "key"})
        assert reply.json()["id"] == "key"
    assert len(front.engine.runs) == 1


async def test_an_id_cannot_leave_the_job_folder(front: RunningFront, tmp_path: Path) -> None:
    result = (await front.sync(draw(), request_id="../../x")).json()
    assert "/" not in result["id"]
    assert Path(result["output"][0]["local_path"]).is_relative_to(tmp_path / "state" / "jobs")
    assert (await front.http.get("/result/..%2F..%2Fx")).status_code in (200, 404)


async def test_a_forged_or_foreign_link_is_refused(front: RunningFront) -> None:
    url = (await front.sync(draw())).json()["output"][0]["url"]
    assert (await front.http.get(url[:-3] + "abc")).status_code == 403
    assert (await front.http.get(url.split("?")[0])).status_code == 403


async def test_random_ints_are_drawn_once_and_stored(front: RunningFront) -> None:
    drawn = (await front.sync(draw("__RANDOM_INT__ and __RANDOM_INT__", 1), request_id="dice")).json()
    first, second = (await front.http.get(drawn["output"][0]["url"])).text.split(" and ")
    assert first.isdigit() and second.isdigit() and first != second


async def test_cancelling_a_running_job_ends_it_as_cancelled_and_frees_the_engine(front: RunningFront) -> None:
    waiting = asyncio.create_task(front.sync(wait(), request_id="slow"))
    await front.until_message("slow", "Progress: 25.0%")
    reply = await front.http.post("/cancel/slow")
    assert (reply.status_code, reply.json()["status"]) == (200, "cancelled")
    assert (await waiting).status_code == 499
    assert (await front.sync(draw())).status_code == 200
    assert "already ended" in (await front.http.post("/cancel/slow")).json()["message"]


async def test_jobs_of_an_engine_that_takes_uuids_alone_run_report_and_stop(tmp_path: Path, engine: FakeEngine) -> None:
    engine.takes_uuids_alone = True
    async with running_front(tmp_path, engine) as front:
        assert (await front.sync(draw("ab", 2), request_id="one")).json()["status"] == "completed"
        waiting = asyncio.create_task(front.sync(wait(), request_id="slow"))
        await front.until_message("slow", "Progress: 25.0%")
        assert (await front.http.post("/cancel/slow")).json()["status"] == "cancelled"
        assert (await waiting).status_code == 499
        assert (await front.sync(fail())).status_code == 500
    assert len(engine.runs) == len({uuid.UUID(run) for run in engine.runs}) == 3


async def test_cancelling_a_queued_job_touches_no_other(front: RunningFront) -> None:
    for name in ("first", "second", "third"):
        await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": name}})
    await front.until_message("first", "Progress")
    assert (await front.http.post("/cancel/third")).json()["status"] == "cancelled"
    assert (await front.http.post("/cancel/second")).json()["status"] == "cancelled"
    assert (await front.http.get("/result/first")).json()["status"] == "generating"
    assert front.engine.runs == ["first-1"]
    await front.http.post("/cancel/first")
    assert (await front.http.get("/health")).status_code == 200
    assert (await front.sync(draw())).status_code == 200


async def test_a_sync_client_that_leaves_can_come_back_within_the_grace_period(front: RunningFront) -> None:
    with pytest.raises(httpx.ReadTimeout):
        body = {"input": {"workflow_json": wait(), "request_id": "back"}}
        await front.http.post("/generate/sync", json=body, timeout=0.15)
    again = asyncio.create_task(front.sync(wait(), request_id="back"))
    await front.until_message("back", "Progress")
    front.engine.release()
    assert (await again).status_code == 200
    assert front.engine.runs == ["back-1"]


async def test_a_sync_job_that_nobody_waits_for_is_cancelled_and_the_worker_goes_on(front: RunningFront) -> None:
    with pytest.raises(httpx.ReadTimeout):
        body = {"input": {"workflow_json": wait(), "request_id": "left"}}
        await front.http.post("/generate/sync", json=body, timeout=0.1)
    await front.until("left", "cancelled")
    assert (await front.sync(draw())).status_code == 200


async def test_a_job_over_its_time_limit_is_504(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, job_timeout=0.2) as front:
        response = await front.sync(wait())
        assert (response.status_code, response.json()["status"]) == (504, "timeout")

        async def goes_on() -> bool:  # within the same limit
            return (await front.sync(draw())).status_code == 200

        await until(goes_on)


async def test_a_full_queue_is_503_with_retry_after(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, max_queue_size=1) as front:
        await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "only"}})
        refused = await front.sync(draw())
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["message"].startswith("Worker at capacity (1 in flight)")
        await front.http.post("/cancel/only")


async def test_a_socket_that_drops_or_says_nothing_loses_no_job(front: RunningFront) -> None:
    running = asyncio.create_task(front.sync(wait(), request_id="dropped"))
    await front.until_message("dropped", "Progress")
    await front.engine.drop_sockets()
    front.engine.release()
    assert (await running).status_code == 200


async def test_an_engine_that_forgets_a_running_job_gets_it_once_more(front: RunningFront) -> None:
    running = asyncio.create_task(front.sync(steps(hold=2), request_id="twice"))
    await front.until_message("twice", "Progress")
    front.engine.forget_everything()
    await front.engine.drop_sockets()
    front.engine.go_on.set()
    assert (await running).status_code == 200
    assert front.engine.runs == ["twice-1", "twice-2"]


async def test_an_engine_that_dies_in_mid_job_is_waited_for_and_gets_the_job_once_more(front: RunningFront) -> None:
    running = asyncio.create_task(front.sync(steps(hold=2), request_id="died"))
    await front.until_message("died", "Progress")
    front.engine.is_down = True
    front.engine.forget_everything()
    front.engine.go_on.set()
    (client,) = front.front.services.engines.pool.clients
    client.facts.forget_object_info()
    client.mark_lost()  # what the supervisor says at once
    await asyncio.sleep(0.3)
    assert not running.done()
    front.engine.is_down = False
    assert (await running).status_code == 200
    assert front.engine.runs == ["died-1", "died-2"]


async def test_a_prompt_whose_acceptance_was_not_heard_is_not_sent_twice(front: RunningFront) -> None:
    front.engine.loses_answers = 1
    assert (await front.sync(wait(0.5), request_id="unheard")).status_code == 200
    assert front.engine.runs == ["unheard-1"]


async def test_half_a_character_and_numbers_that_are_none_are_422_and_stop_nothing(front: RunningFront) -> None:
    for body in (
        r'{"input": {"workflow_json": {"1": {"class_type": "Draw", "inputs": {"text": "\ud800", "size": 1}}}}}',
        '{"input": {"workflow_json": {"1": {}}, "webhook": {"extra_params": {"a": NaN}}}}',
    ):
        response = await front.http.post("/generate/sync", content=body)
        assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, "body")
    assert (await front.sync(draw())).status_code == 200


async def test_a_job_left_by_the_last_front_can_be_cancelled_before_an_engine_is_up(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_front(tmp_path, engine) as front:
        running = asyncio.create_task(front.sync(wait(), request_id="left"))
        await front.until_message("left", "Progress")
    await asyncio.gather(running, return_exceptions=True)
    engine.is_down = True
    async with running_front(tmp_path, engine, waits_until_ready=False) as front:
        assert (await front.http.post("/cancel/left")).json()["status"] == "cancelled"
        assert (await front.http.get("/result/left")).status_code == 499


async def test_with_keys_nobody_else_reads_or_cancels_a_job(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="hush") as front:
        app = create_app(front.front.services)
        outside = httpx.ASGITransport(app, client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=outside, base_url="http://worker") as stranger:
            key = {"Authorization": "Bearer hush"}
            body = {"input": {"workflow_json": draw(), "request_id": "mine"}}
            assert (await stranger.post("/generate/sync", json=body, headers=key)).status_code == 200
            assert (await stranger.get("/result/mine")).status_code == 401
            assert (await stranger.post("/cancel/mine")).status_code == 401
            assert (await stranger.get("/result/mine", headers=key)).status_code == 200


async def test_a_job_that_somebody_asked_for_without_waiting_outlives_its_sync_client(front: RunningFront) -> None:
    body = {"input": {"workflow_json": wait(), "request_id": "shared"}}
    with contextlib.suppress(httpx.ReadTimeout):
        await front.http.post("/generate/sync", json=body, timeout=0.1)
    assert (await front.http.post("/generate", json=body)).status_code == 202
    front.engine.release_all()
    assert (await front.until("shared", "completed", "cancelled"))["status"] == "completed"


async def test_queue_info_health_and_metrics_answer(front: RunningFront) -> None:
    await front.sync(draw())
    info = (await front.http.get("/queue-info")).json()
    assert info["generation_queue_size"] == info["preprocess_queue_size"] == info["postprocess_queue_size"] == 0
    health = (await front.http.get("/health")).json()
    assert (health["backends_healthy"], health["version"]) == ("1/1", metadata.version(DISTRIBUTION))
    assert 'darkroom_jobs_ended_total{state="completed"} 1.0' in (await front.http.get("/metrics")).text
    assert {entry["name"] for entry in (await front.http.get("/modifiers")).json()} >= {"Text2Image", "Image2Image"}


async def test_the_documentation_needs_nothing_from_elsewhere(front: RunningFront) -> None:
    page = (await front.http.get("/docs")).text
    parts = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(parts) == 3 and all(part.startswith("/docs/") for part in parts)
    kinds = [(await front.http.get(part)).headers["content-type"].partition(";")[0] for part in parts]
    assert sorted(kinds) == ["image/png", "text/css", "text/javascript"]
    assert (await front.http.get("/docs/__init__.py")).status_code == 422
