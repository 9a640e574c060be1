"""A front under Vast: each row of the protocol's table of answers over real sockets, and what the autoscaler hears.

The autoscaler is a stand-in with a real key; the engine is the fake one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.contract.graph.cost import UNIT_COST
from darkroom.worker.integrations.vast import autoscaler as autoscaler_module
from darkroom.worker.integrations.vast.routes import VastRoutes
from darkroom.worker.settings.platforms import VastTiming
from tests.fakes import FakeEngine, draw, fail, running_engine, wait
from tests.worker.adjusted_front import Constants
from tests.worker.integrations.vast.stand_in import StandIn
from tests.worker.running_front import RunningFront, running_front, until

URL = "http://127.0.0.1:31000"
QUICK = VastTiming(
    tick=0.01, at_least_every=0.05, between_tries=0.01, collect_sessions=0.02, key_waits=(0.01, 0.01), key_pause=0.01
)
TOKEN = "master-token-of-this-test"


@dataclass
class VastFront:
    front: RunningFront
    autoscaler: StandIn
    engine: FakeEngine
    last_index: int = 0

    def envelope(self, workflow: dict[str, Any], session_id: Any = None, **auth: Any) -> dict[str, Any]:
        self.last_index += 1
        return {
            "auth_data": self.autoscaler.auth(URL, self.last_index) | auth,
            "payload": {"input": {"workflow_json": workflow}},
            "session_id": session_id,
        }

    async def post(self, route: str, body: Any, **options: Any) -> httpx.Response:
        return await self.front.http.post(route, json=body, **options)

    async def generate(self, workflow: dict[str, Any], **auth: Any) -> httpx.Response:
        return await self.post("/generate/sync", self.envelope(workflow, **auth))


def vast_settings(autoscaler: StandIn, constants: Constants | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "constants": {"vast": {"public_port": 31000, **(constants or {}).get("vast", {})}},
        "master_token": TOKEN,
        "container_id": 77,
        "report_addr": autoscaler.url,
        "public_ipaddr": "127.0.0.1",
        "worker_http_port": 0,
        **changes,
    }


@pytest.fixture
async def autoscaler() -> AsyncIterator[StandIn]:
    async with StandIn() as running:
        yield running


@pytest.fixture
async def vast(tmp_path: Path, autoscaler: StandIn, request: pytest.FixtureRequest) -> AsyncIterator[VastFront]:
    changes = vast_settings(autoscaler, **getattr(request, "param", {}))
    async with (
        running_engine(tmp_path) as engine,
        running_front(tmp_path, engine, vast_timing=QUICK, **changes) as front,
    ):
        await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
        yield VastFront(front, autoscaler, engine)


# the table of answers


async def test_a_body_that_is_no_json_is_422(vast: VastFront) -> None:
    reply = await vast.front.http.post("/generate/sync", content=b"{no json")
    assert (reply.status_code, reply.json()) == (422, {"error": "invalid JSON"})


async def test_what_is_missing_is_422_and_named(vast: VastFront) -> None:
    for name in ("auth_data", "payload"):
        body = vast.envelope(draw())
        del body[name]
        reply = await vast.post("/generate/sync", body)
        assert (reply.status_code, reply.json()) == (422, {name: "field missing"})
    body = vast.envelope(draw())
    del body["auth_data"]["signature"], body["auth_data"]["cost"]
    reply = await vast.post("/generate/sync", body)
    missing = {"cost": "missing parameter", "signature": "missing parameter"}
    assert (reply.status_code, reply.json()) == (422, {"auth_data": missing})


async def test_an_unknown_session_is_410(vast: VastFront) -> None:
    reply = await vast.post("/generate/sync", vast.envelope(draw(), session_id="nosuchsession"))
    assert (reply.status_code, reply.json()) == (410, {"error": "invalid session"})


async def test_a_bad_signature_is_401_with_an_empty_body_and_counts_as_rejected(vast: VastFront) -> None:
    for route in ("/generate", "/generate/sync", "/generate/stream", "/session/create"):
        reply = await vast.post(route, vast.envelope(draw(), signature="AAAA"))
        assert (reply.status_code, reply.content) == (401, b"")
        end = await vast.autoscaler.until_end(vast.last_index)
        assert (end["status"], end["success"]) == ("Rejected", False)
    assert vast.engine.runs == []
    other = "http://127.0.0.1:31999"
    reply = await vast.generate(draw(), url=other, signature=vast.autoscaler.sign(other))
    assert (reply.status_code, reply.content) == (401, b"")


@pytest.mark.parametrize("vast", [{"max_queue_time": 1500}], indirect=True)
async def test_too_long_a_wait_is_429_with_an_empty_body_and_counts_as_rejected(vast: VastFront) -> None:
    vast.front.front.services.jobs.run_clock.add(seconds=1000.0, cost=UNIT_COST)
    clients = []
    for num_jobs in (1, 2):
        clients.append(asyncio.create_task(vast.generate(wait())))
        await until_there_are(vast, num_jobs)
    reply = await vast.generate(draw("one too many"))
    assert (reply.status_code, reply.content) == (429, b"")
    end = await vast.autoscaler.until_end(vast.last_index)
    assert (end["status"], end["success"], end["work_started_at"]) == ("Rejected", False, 0.0)
    await vast.autoscaler.until_status(rej_load=100)
    for client in clients:
        client.cancel()


async def until_there_are(vast: VastFront, num_jobs: int) -> None:
    async def are_there() -> bool:
        return len(vast.front.front.store.jobs) == num_jobs

    await until(are_there)


async def test_an_image_is_passed_on_and_counts_as_success(vast: VastFront) -> None:
    reply = await vast.generate(draw("a boat"))
    assert (reply.status_code, reply.json()["status"]) == (200, "completed")
    assert reply.headers["content-type"] == "application/json"
    end = await vast.autoscaler.until_end(vast.last_index)
    assert (end["status"], end["success"], end["worker_id"], end["mtoken"]) == ("Success", True, 77, TOKEN)
    assert 0 < end["entered_queue_at"] <= end["work_started_at"] <= end["work_completed_at"]


async def test_a_stream_is_passed_on_as_a_stream(vast: VastFront) -> None:
    reply = await vast.post("/generate/stream", vast.envelope(draw("a boat")))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "final_result" in reply.text
    assert (await vast.autoscaler.until_end(vast.last_index))["status"] == "Success"


async def test_a_job_that_fails_is_answered_422_and_reported_as_an_error(vast: VastFront) -> None:
    reply = await vast.generate(fail())
    assert (reply.status_code, reply.json()["status"]) == (422, "failed")
    end = await vast.autoscaler.until_end(vast.last_index)
    assert (end["status"], end["success"]) == ("Error", False)


async def test_a_request_that_is_wrong_is_422_and_no_fault_of_the_worker(vast: VastFront) -> None:
    reply = await vast.generate({"1": {"class_type": "NoSuchNode", "inputs": {}}})
    assert reply.status_code == 422
    end = await vast.autoscaler.until_end(vast.last_index)
    assert (end["status"], end["success"]) == ("Success", True)


async def test_an_engine_that_is_lost_is_502_and_an_error(vast: VastFront) -> None:
    asked = asyncio.create_task(vast.generate(wait()))
    for _ in range(2):
        runs = len(vast.engine.runs)

        async def has_begun(before: int = runs) -> bool:
            return len(vast.engine.runs) > before

        await until(has_begun)
        vast.engine.forget_everything()
    assert (await asked).status_code == 502
    end = await vast.autoscaler.until_end(vast.last_index)
    assert (end["status"], end["success"]) == ("Error", False)


@pytest.mark.parametrize("vast", [{"sync_grace_seconds": 0}], indirect=True)
async def test_a_client_that_leaves_counts_as_cancelled(vast: VastFront) -> None:
    asked = asyncio.create_task(vast.generate(wait()))
    await vast.autoscaler.until_status(working_request_idxs=[1])
    asked.cancel()
    end = await vast.autoscaler.until_end(1)
    assert (end["status"], end["success"]) == ("Cancelled", True)


# reports


async def test_a_status_report_has_every_field_of_the_protocol(vast: VastFront) -> None:
    report = vast.autoscaler.statuses[-1]
    kinds = {
        "id": int,
        "mtoken": str,
        "version": str,
        "loadtime": float,
        "max_perf": float,
        "cur_perf": float,
        "cur_load": int | float,
        "new_load": float,
        "rej_load": float,
        "error_msg": str,
        "num_requests_working": int,
        "num_requests_recieved": int,
        "working_request_idxs": list,
        "disk_usage": float,
        "additional_disk_usage": float,
        "cur_capacity": int,
        "max_capacity": int,
        "url": str,
    }
    assert {name: type(report[name]) for name in report if not isinstance(report[name], kinds[name])} == {}
    assert set(report) == set(kinds)
    assert (report["id"], report["mtoken"], report["version"], report["url"]) == (77, TOKEN, "1.1.0", URL)
    assert report["max_perf"] > 0 and report["disk_usage"] > 0


async def test_load_is_counted_while_a_job_is_there_and_done_when_it_has_ended(vast: VastFront) -> None:
    asked = asyncio.create_task(vast.generate(wait()))
    working = await vast.autoscaler.until_status(working_request_idxs=[1])
    assert (working["cur_load"], working["num_requests_working"], working["num_requests_recieved"]) == (100, 1, 1)
    vast.engine.release()
    assert (await asked).status_code == 200
    await vast.autoscaler.until_status(cur_perf=100)
    at_rest = await vast.autoscaler.until_status(cur_load=0, num_requests_recieved=1, num_requests_working=0)
    assert at_rest["working_request_idxs"] == []
    assert sum(status["new_load"] for status in vast.autoscaler.statuses) == 100


async def test_counters_go_back_only_after_a_report_was_taken(vast: VastFront) -> None:
    vast.autoscaler.refuses_reports = True
    assert (await vast.generate(draw())).status_code == 200
    assert (await vast.generate(draw("again"))).status_code == 200
    asked = len(vast.autoscaler.asked)

    async def some_were_refused() -> bool:
        tried = vast.autoscaler.asked[asked:]
        return "/worker_status/" in tried and "/delete_requests/" in tried

    await until(some_were_refused)
    vast.autoscaler.refuses_reports = False
    assert {(await vast.autoscaler.until_end(index))["status"] for index in (1, 2)} == {"Success"}

    async def all_is_told() -> bool:
        told: float = sum(status["cur_perf"] for status in vast.autoscaler.statuses)
        return told >= 200

    await until(all_is_told)
    await vast.autoscaler.until_status(cur_load=0, cur_perf=0, num_requests_recieved=2)
    assert sum(status["cur_perf"] for status in vast.autoscaler.statuses) == 200


async def test_reports_go_to_the_first_address_that_takes_them(tmp_path: Path, autoscaler: StandIn) -> None:
    addresses = f"http://127.0.0.1:9/, {autoscaler.url}/"
    changes = vast_settings(autoscaler, report_addr=addresses)
    async with (
        running_engine(tmp_path) as engine,
        running_front(tmp_path, engine, vast_timing=QUICK, **changes) as front,
    ):
        await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
        body = VastFront(front, autoscaler, engine).envelope(draw())
        assert (await front.http.post("/generate/sync", json=body)).status_code == 200


async def test_without_a_key_the_worker_reports_an_error_and_is_not_loaded_until_it_comes(
    tmp_path: Path, autoscaler: StandIn
) -> None:
    autoscaler.has_key = False
    async with (
        running_engine(tmp_path) as engine,
        running_front(tmp_path, engine, vast_timing=QUICK, **vast_settings(autoscaler)) as front,
    ):
        vast = VastFront(front, autoscaler, engine)
        report = await autoscaler.until_status(error_msg=lambda text: "public key" in text)
        assert (report["loadtime"], report["max_perf"]) == (0.0, 0.0)
        assert (await vast.generate(draw())).status_code == 503
        autoscaler.has_key = True
        loaded = await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
        assert loaded["error_msg"] == "" and loaded["max_perf"] > 0
        assert (await vast.generate(draw())).status_code == 200


async def test_a_worker_that_is_not_ready_is_never_reported_as_loaded(tmp_path: Path, autoscaler: StandIn) -> None:
    async with running_engine(tmp_path) as engine:
        engine.is_down = True
        changes = vast_settings(autoscaler)
        async with running_front(tmp_path, engine, waits_until_ready=False, vast_timing=QUICK, **changes) as front:
            vast = VastFront(front, autoscaler, engine)
            await autoscaler.until_status(loadtime=0.0)
            refused = await vast.generate(draw())
            assert refused.status_code == 503 and "retry-after" in refused.headers
            assert (await autoscaler.until_end(vast.last_index))["status"] == "Rejected"
            assert {status["loadtime"] for status in autoscaler.statuses} == {0.0}
            engine.is_down = False
            assert (await autoscaler.until_status(loadtime=lambda seconds: seconds > 0))["max_perf"] > 0


async def test_signatures_are_checked_without_the_platform_too_when_there_is_a_master_token(
    tmp_path: Path, autoscaler: StandIn
) -> None:
    changes = vast_settings(autoscaler, container_id=None)
    async with running_engine(tmp_path) as engine, running_front(tmp_path, engine, **changes) as front:
        vast = VastFront(front, autoscaler, engine)

        async def the_key_has_come() -> bool:
            return (await vast.generate(draw())).status_code != 503

        await until(the_key_has_come)
        assert (await vast.generate(draw("signed"))).status_code == 200
        assert (await vast.generate(draw("forged"), signature="AAAA")).status_code == 401
        assert (await vast.post("/generate/sync", vast.envelope(draw(), session_id="any"))).status_code == 410
        assert (await vast.post("/session/create", vast.envelope(draw()))).status_code == 404
        assert autoscaler.statuses == []


# the same request again


async def test_the_same_request_sent_again_attaches_to_its_job(vast: VastFront) -> None:
    body = vast.envelope(wait(0.3))
    first, second = await asyncio.gather(vast.post("/generate/sync", body), vast.post("/generate/sync", body))
    third = await vast.post("/generate/sync", body)
    assert first.json()["id"] == second.json()["id"] == third.json()["id"]
    assert len(vast.engine.runs) == 1


async def test_the_same_request_after_a_failure_is_made_anew(vast: VastFront) -> None:
    body = vast.envelope(fail())
    first, second = [await vast.post("/generate/sync", body) for _ in range(2)]
    assert first.json()["id"] != second.json()["id"]
    assert len(vast.engine.runs) == 2


# who may come in


@pytest.mark.parametrize("vast", [{"unsecured": True}], indirect=True)
async def test_partial_auth_data_is_taken_when_unsecured(vast: VastFront) -> None:
    body = vast.envelope(draw())
    body["auth_data"] = {"url": "http://elsewhere", "request_idx": 1}
    for _ in range(2):
        assert (await vast.post("/generate/sync", body)).status_code == 200
    assert len(vast.engine.runs) == 2


async def test_the_update_route_asks_for_the_master_token(vast: VastFront) -> None:
    for wrong in ({}, {"Authorization": "Bearer nothing"}):
        reply = await vast.post("/pyworker/update", {}, headers=wrong)
        assert (reply.status_code, reply.json()) == (401, {"error": "unauthorized"})


async def test_the_update_route_leaves_its_mark(tmp_path: Path, autoscaler: StandIn) -> None:
    mark = tmp_path / "mark"
    changes = vast_settings(autoscaler, constants={"vast": {"update_file": mark}})
    async with running_engine(tmp_path) as engine, running_front(tmp_path, engine, **changes) as front:
        assert not mark.exists()
        reply = await front.http.post("/pyworker/update", headers={"Authorization": TOKEN})
        assert (reply.status_code, reply.json()) == (200, {"ok": True})
        assert mark.exists()


# sessions


async def open_session(vast: VastFront, **payload: Any) -> tuple[str, dict[str, Any]]:
    vast.last_index += 1
    auth = vast.autoscaler.auth(URL, vast.last_index, cost="250")
    reply = await vast.post("/session/create", {"auth_data": auth, "payload": payload})
    assert reply.status_code == 201, reply.text
    session_id = reply.json()["session_id"]
    assert len(session_id) == 13 and session_id.isalnum()
    return session_id, {"session_id": session_id, "session_auth": auth}


async def test_a_session_counts_as_one_request_of_its_cost_until_it_is_closed(vast: VastFront) -> None:
    session_id, proof = await open_session(vast, lifetime=30)
    working = await vast.autoscaler.until_status(working_request_idxs=[1])
    assert (working["cur_load"], working["num_requests_working"]) == (250, 1)
    inside = await vast.post("/generate/sync", vast.envelope(draw(), session_id))
    assert inside.status_code == 200
    assert (await vast.post("/session/health", proof)).json() == {"ok": True}
    ended = await vast.post("/session/end", proof)
    assert (ended.status_code, ended.json()) == (200, {"ended": True, "removed_session": session_id})
    assert (await vast.autoscaler.until_end(1))["status"] == "Success"
    assert {end["request_idx"] for end in vast.autoscaler.ends} == {1}
    after = await vast.post("/generate/sync", vast.envelope(draw(), session_id))
    assert after.status_code == 410
    assert (await vast.post("/session/health", proof)).json() == {"ok": False}


async def test_a_session_shows_what_it_is_and_each_request_adds_one_lifetime(vast: VastFront) -> None:
    session_id, proof = await open_session(vast, lifetime=40, on_close_route="/x", on_close_payload={"a": 1})
    known = (await vast.post("/session/get", proof)).json()
    assert known["session_id"] == session_id and known["auth_data"] == proof["session_auth"]
    assert (known["lifetime"], known["on_close_route"], known["on_close_payload"]) == (40, "/x", {"a": 1})
    assert known["expiration"] == pytest.approx(known["created_at"] + 40, abs=1)
    await vast.post("/generate/sync", vast.envelope(draw(), session_id))
    later = (await vast.post("/session/get", proof)).json()
    assert later["expiration"] == pytest.approx(known["expiration"] + 40, abs=1)


@pytest.mark.parametrize("vast", [{"constants": {"vast": {"max_session_seconds": 50}}}], indirect=True)
async def test_no_session_outlives_the_longest_life(vast: VastFront) -> None:
    session_id, proof = await open_session(vast, lifetime=1e308)
    known = (await vast.post("/session/get", proof)).json()
    assert known["lifetime"] == 50
    assert known["expiration"] == pytest.approx(known["created_at"] + 50, abs=1)
    await vast.post("/generate/sync", vast.envelope(draw(), session_id))
    assert (await vast.post("/session/get", proof)).json()["expiration"] == pytest.approx(known["expiration"], abs=1)


@pytest.mark.parametrize("vast", [{"api_keys": ("shop:shop-key", "other:other-key")}], indirect=True)
async def test_beside_vasts_envelope_only_a_key_opens_and_each_sees_its_own(vast: VastFront) -> None:
    shop, other = {"Authorization": "Bearer shop-key"}, {"Authorization": "Bearer other-key"}
    enveloped = await vast.post("/generate/sync", vast.envelope(draw("enveloped")))
    assert enveloped.status_code == 200
    bare = {"input": {"workflow_json": draw("bare"), "request_id": "bare"}}
    assert (await vast.post("/generate/sync", bare)).status_code == 401
    assert (await vast.post("/generate/sync", bare, headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 401
    assert (await vast.post("/generate/sync", bare, headers=shop)).status_code == 200
    for name, headers, status in (
        ("bare", shop, 200),
        ("bare", other, 404),
        (enveloped.json()["id"], shop, 404),
        ("bare", {}, 401),
    ):
        assert (await vast.front.http.get(f"/result/{name}", headers=headers)).status_code == status
    assert (await vast.post("/webhooks/redeliver", {}, headers=shop)).status_code == 403


@pytest.mark.parametrize("vast", [{"api_keys": ("shop:shop-key", "other:other-key")}], indirect=True)
async def test_a_sessions_last_job_is_its_makers(vast: VastFront) -> None:
    shop, other = {"Authorization": "Bearer shop-key"}, {"Authorization": "Bearer other-key"}
    auth = vast.autoscaler.auth(URL, 1)
    wishes = {"input": {"request_id": "farewell", "workflow_json": draw("goodbye")}}
    payload = {"lifetime": 60, "on_close_route": "/generate", "on_close_payload": wishes}
    opened = await vast.post("/session/create", {"auth_data": auth, "payload": payload}, headers=shop)
    proof = {"session_id": opened.json()["session_id"], "session_auth": auth}
    assert (await vast.post("/session/end", proof)).status_code == 200
    assert (await vast.front.http.get("/result/farewell", headers=shop)).status_code == 200
    assert (await vast.front.http.get("/result/farewell", headers=other)).status_code == 404


async def test_session_routes_answer_as_vasts_own(vast: VastFront) -> None:
    session_id, proof = await open_session(vast)
    for route, unknown_status in (("/session/get", 400), ("/session/end", 400), ("/session/health", 200)):
        assert (await vast.front.http.post(route, content=b"{")).json() == {"error": "invalid JSON"}
        without = await vast.post(route, {"session_auth": proof["session_auth"]})
        assert (without.status_code, without.json()) == (422, {"error": "missing session_id"})
        assert (await vast.post(route, {**proof, "session_id": "nosuchsession"})).status_code == unknown_status
        for wrong in ({**proof["session_auth"], "reqnum": 99}, None):
            reply = await vast.post(route, {"session_id": session_id, "session_auth": wrong})
            assert (reply.status_code, reply.json()) == (401, {"error": "session_auth is not valid"})


async def test_a_lifetime_that_makes_no_sense_is_422(vast: VastFront) -> None:
    for lifetime in (0, -1, "long", True, None):
        body = {"auth_data": vast.autoscaler.auth(URL, 1), "payload": {"lifetime": lifetime}}
        reply = await vast.post("/session/create", body)
        assert reply.status_code == 422 and "lifetime" in reply.json()["payload"]


@pytest.mark.parametrize("vast", [{"constants": {"vast": {"max_sessions": 1}}}], indirect=True)
async def test_more_sessions_than_allowed_are_429_and_rejected(vast: VastFront) -> None:
    await open_session(vast)
    vast.last_index += 1
    auth = vast.autoscaler.auth(URL, vast.last_index)
    reply = await vast.post("/session/create", {"auth_data": auth, "payload": {}})
    assert (reply.status_code, reply.content) == (429, b"")
    assert (await vast.autoscaler.until_end(2))["status"] == "Rejected"


async def test_the_end_of_a_session_posts_what_its_maker_wanted_and_ends_its_jobs(vast: VastFront) -> None:
    payload = {"input": {"request_id": "farewell", "workflow_json": draw("goodbye")}}
    session_id, proof = await open_session(vast, on_close_route="/generate", on_close_payload=payload)
    inside = asyncio.create_task(vast.post("/generate/sync", vast.envelope(wait(), session_id)))

    async def a_job_runs() -> bool:
        return len(vast.engine.runs) == 1

    await until(a_job_runs)
    assert (await vast.post("/session/end", proof)).status_code == 200
    assert (await inside).status_code == 499
    assert (await vast.front.until("farewell", "completed"))["status"] == "completed"


async def test_a_session_whose_time_is_over_is_collected(tmp_path: Path, autoscaler: StandIn) -> None:
    changes = vast_settings(autoscaler)
    async with (
        running_engine(tmp_path) as engine,
        running_front(tmp_path, engine, vast_timing=QUICK, **changes) as front,
    ):
        await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
        vast = VastFront(front, autoscaler, engine)
        await open_session(vast, lifetime=0.05)
        assert (await autoscaler.until_end(1))["status"] == "Success"


async def test_the_plain_listener_ends_sessions_and_does_nothing_else(vast: VastFront) -> None:
    session_id, proof = await open_session(vast)
    port = plain_port(vast.front)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.post("/generate/sync", json=vast.envelope(draw()))).status_code == 404
        assert (await http.post("/session/end", json=proof)).json()["removed_session"] == session_id


def plain_port(front: RunningFront) -> int:
    routes = front.front.services.platform_routes
    assert isinstance(routes, VastRoutes)
    return routes.vast.plain_port


async def test_a_task_of_the_autoscaler_that_breaks_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler_module, "ANEW_SECONDS", 0.0)
    tries: list[int] = []

    async def breaks_once() -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise RuntimeError("planted")

    await autoscaler_module.restart_forever("test", breaks_once)
    assert tries == [0, 1]
