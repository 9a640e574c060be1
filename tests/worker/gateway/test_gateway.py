"""Gateways: jobs through a real broker and a real database to a worker, from any replica, over faults of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from tests.fakes import FakeEngine, draw, fail, steps, wait
from tests.worker.gateway.running_gateway import running_gateway
from tests.worker.postgres_server import PostgresServer
from tests.worker.receiver import Receiver
from tests.worker.running_front import running_front, until
from tests.worker.sources.servers import RedisServer, nats_server, redis_server

LEASE_SECONDS = 1.0


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.fleet.FRESH_SECONDS", 0.1)
    monkeypatch.setattr("darkroom.worker.gateway.gateway.COLLECT_SECONDS", 0.1)


@pytest.fixture
async def gateway(broker: RedisServer, database: str) -> AsyncIterator[httpx.AsyncClient]:
    async with running_gateway(broker.url, database) as http:
        yield http


def worker(folder: Path, engine: FakeEngine, broker: RedisServer, **changes: Any) -> Any:
    folder.mkdir(exist_ok=True)
    return running_front(folder, engine, broker_url=broker.url, broker_lease_seconds=LEASE_SECONDS, **changes)


def body(job_id: str, workflow: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"input": {"workflow_json": workflow or draw(), "request_id": job_id, **fields}}


async def until_status(http: httpx.AsyncClient, job_id: str, *states: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def has_come() -> bool:
        shown = (await http.get(f"/result/{job_id}")).json()
        if shown["status"] in states:
            found.append(shown)
        return bool(found)

    await until(has_come)
    return found[0]


async def test_a_job_goes_through_and_is_the_same_from_every_replica(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, database: str, gateway: httpx.AsyncClient
) -> None:
    async with worker(tmp_path / "worker", engine, broker), running_gateway(broker.url, database) as other:
        reply = await gateway.post("/generate/sync", json=body("one", metadata={"order": 7}))
        ended = reply.json()
        assert (reply.status_code, ended["id"], ended["status"]) == (200, "one", "completed")
        assert ended["output"][0]["data"] and ended["metadata"] == {"order": 7}
        assert ended["timings"]["total_ms"] is not None
        again = await other.post("/generate/sync", json=body("one", metadata={"order": 7}))
        assert again.json() == ended
        assert (await other.post("/generate", json=body("one", draw("other")))).status_code == 409
        assert (await other.get("/result/one")).json() == ended
        listed = (await other.get("/jobs")).json()["jobs"]
        assert [(job["id"], job["status"], job["metadata"]) for job in listed] == [("one", "completed", {"order": 7})]
        accepted = await gateway.post("/generate", json=body("two"))
        assert accepted.status_code == 202 and accepted.json()["status"] == "pending"
        await until_status(other, "two", "completed")
        assert (await other.delete("/jobs/two")).status_code == 200
        assert (await gateway.get("/result/two")).status_code == 404
        again = (await gateway.post("/generate/sync", json=body("two", draw("another body")))).json()
        assert (again["id"], again["status"]) == ("two", "completed"), "its id is free"
        assert (
            "swagger" in (await gateway.get("/docs")).text and "/generate" in (await gateway.get("/openapi.json")).text
        )
        info = (await gateway.get("/queue-info")).json()
        assert info == {"queued": 0, "live": 0, "workers": 1}
    assert len(engine.runs) == 3


async def test_a_stream_from_another_replica_ends_with_the_result(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, database: str, gateway: httpx.AsyncClient
) -> None:
    async with worker(tmp_path / "worker", engine, broker), running_gateway(broker.url, database) as other:
        await gateway.post("/generate", json=body("one", wait()))
        events = []
        async with other.stream("GET", "/stream/one") as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
                    if events[-1]["status"] == "generating":
                        engine.release()
        assert events[0]["status"] == "queued" and "generating" in [event["status"] for event in events]
        assert events[-1]["status"] == "final_result" and events[-1]["result"]["status"] == "completed"


async def test_what_every_worker_would_refuse_later_is_refused_before_it_is_accepted(
    gateway: httpx.AsyncClient,
) -> None:
    webhook, put = {"url": "http://10.0.0.1/hook"}, {"url": "https://192.168.1.1/{key}"}
    refused = await gateway.post("/generate", json=body("one", timeout=10**6, webhook=webhook, put=put))
    assert refused.status_code == 422
    fields = {item["field"] for item in refused.json()["error"]["problems"]}
    assert fields == {"input.timeout", "input.webhook.url", "input.put.url"}


async def test_metrics_say_what_the_gateway_sees(gateway: httpx.AsyncClient) -> None:
    assert (await gateway.post("/generate", json=body("one"))).status_code == 202
    found = (await gateway.get("/metrics")).text.splitlines()
    seen = {line for line in found if line.startswith("darkroom_gateway_")}
    names = ("jobs_live 1.0", "jobs_queued 1.0", "jobs_unsent 0.0", "workers 0.0", "database_up 1.0", "broker_up 1.0")
    streams = [
        f'work{{model="",priority="{name}"}} {num}' for name, num in (("high", 0.0), ("normal", 1.0), ("low", 0.0))
    ]
    assert seen == {f"darkroom_gateway_{name}" for name in (*names, *streams)}
    assert 'darkroom_http_requests_total{code="202",method="POST",route="/generate"} 1.0' in found


async def test_an_autoscaler_sees_all_work_also_that_of_models_and_what_no_broker_has(
    gateway: httpx.AsyncClient, broker: RedisServer
) -> None:
    async def work() -> dict[str, Any]:
        reply = await gateway.get("/api/v1/scale")
        assert reply.status_code == 200, reply.text
        shown: dict[str, Any] = reply.json()
        return shown

    none = {"jobs": 0, "unsent": 0, "by_priority": {"high": 0, "normal": 0, "low": 0}, "by_model": {"": 0}}
    assert await work() == none
    producer = RedisBroker(BrokerConfig(url=SecretStr(broker.url)))
    for number in range(3):
        await producer.put(f"of-a-model-{number}", b"{}", priority=-1, model="cat.safetensors")
    await gateway.post("/generate", json=body("one"))
    await producer.connect("worker")
    (held,) = await producer.receive(1, [])
    priorities = {"high": 0, "normal": 1, "low": 3}
    found = await work()
    assert (found["jobs"], found["by_priority"]) == (4, priorities), "also what a worker holds"
    assert found["by_model"] == {"": 1, "cat.safetensors": 3}
    await producer.finish(held.job_id, held.receipt, b"{}")
    assert (await work())["jobs"] == 3
    await producer.close()
    broker.kill()
    await gateway.post("/generate", json=body("two"))
    assert (await work())["jobs"] == 2, "those of gateways, while the broker is away"


async def test_the_work_is_for_operators_where_metrics_are(broker: RedisServer, database: str) -> None:
    keys: dict[str, Any] = {"api_keys": ("shop:shop-secret",), "admin_api_keys": ("ops:ops-secret",)}
    async with running_gateway(broker.url, database, metrics_open=False, **keys) as gateway:
        codes = [
            (await gateway.get("/api/v1/scale", headers={"Authorization": f"Bearer {key}-secret"})).status_code
            for key in ("none", "shop", "ops")
        ]
    assert codes == [401, 403, 200]


async def test_bad_requests_are_refused_by_the_node_lists_of_the_fleet(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, gateway: httpx.AsyncClient
) -> None:
    assert (await gateway.post("/convert", json=draw())).status_code == 503, (
        "no nodes are known before the first worker"
    )
    async with worker(tmp_path / "worker", engine, broker):

        async def is_announced() -> bool:
            return bool((await gateway.get("/queue-info")).json()["workers"])

        await until(is_announced)
        assert (await gateway.post("/convert", json=draw("a fox"))).json() == {"workflow_json": draw("a fox")}
        form = (await gateway.post("/form", json={"workflow_json": draw("a fox")})).json()
        assert {field["target"] for field in form["fields"]} == {"1.text", "1.size"}
        wrong = await gateway.post("/generate", json=body("wrong", {"1": {"class_type": "NoSuchNode", "inputs": {}}}))
        assert wrong.status_code == 422
        assert wrong.json()["error"]["problems"][0]["class_type"] == "NoSuchNode"
        assert (await gateway.post("/generate", json=body("big", draw(size=1000)))).status_code == 422
        unknown = await gateway.post("/generate", json={"input": {"modifier": "None"}})
        assert unknown.status_code == 422 and "Text2Image" in unknown.json()["error"]["problems"][0]["allowed"]
        many = {"modifier": "Text2Image", "modifications": {"prompt": "a", "steps": 10**6}}
        field = (await gateway.post("/generate", json={"input": many})).json()["error"]["problems"][0]["field"]
        assert field == "input.modifications.steps"
        wrong = await gateway.post("/generate", json=body("wrong", overrides={"#size": 1000}))
        assert wrong.status_code == 422, "overrides are part of what is checked"
        assert wrong.json()["error"]["problems"][0]["field"].startswith("input.overrides")
        assert (await gateway.get("/result/wrong")).status_code == 404
        right = await gateway.post("/generate/sync", json=body("right", draw(size=1000), overrides={"#size": 64}))
        assert right.json()["status"] == "completed" and right.json()["parameters"]["overrides"], right.text
    assert len(engine.runs) == 1


async def test_what_one_worker_keeps_in_its_own_database_is_refused_by_name(gateway: httpx.AsyncClient) -> None:
    stored = await gateway.post("/generate", json={"input": {"workflow": "portrait", "inputs": {"text": "a"}}})
    assert stored.status_code == 422 and stored.json()["error"]["problems"][0]["field"] == "input.workflow"
    asset = await gateway.post("/generate", json=body("asset", overrides={"#image": "asset:1-2-3"}))
    assert asset.status_code == 422 and "no assets" in asset.json()["error"]["problems"][0]["message"]


async def test_jobs_wait_where_no_worker_is_and_can_be_cancelled(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, gateway: httpx.AsyncClient
) -> None:
    for name in ("kept", "cancelled"):
        assert (await gateway.post("/generate", json=body(name))).status_code == 202
    reply = await gateway.post("/cancel/cancelled")
    assert reply.json() == {"message": "Request cancelled", "status": "cancelled"}
    assert (await gateway.get("/result/cancelled")).status_code == 499
    async with worker(tmp_path / "worker", engine, broker):
        await until_status(gateway, "kept", "completed")
        await gateway.post("/generate", json=body("running", wait()))
        await until_status(gateway, "running", "generating")
        assert (await gateway.post("/cancel/running")).json()["status"] == "cancelled"
        assert (await gateway.post("/cancel/running")).json()["message"].startswith("Request has already ended")
    assert len(engine.runs) == 2


async def test_keys_have_their_own_jobs_and_quotas(broker: RedisServer, database: str) -> None:
    keys: dict[str, Any] = {"api_keys": ("shop:shop-secret", "studio:studio-secret"), "caller_max_jobs_waiting": 2}
    shop, studio = ({"Authorization": f"Bearer {name}-secret"} for name in ("shop", "studio"))
    async with running_gateway(broker.url, database, **keys) as gateway:
        assert (await gateway.post("/generate", json=body("one"))).status_code == 401
        for headers in (shop, studio):
            assert (await gateway.post("/generate", json=body("one"), headers=headers)).status_code == 202
        assert (await gateway.post("/cancel/one", headers=studio)).json()["status"] == "cancelled"
        assert (await gateway.get("/result/one", headers=shop)).json()["status"] == "pending"
        assert [job["id"] for job in (await gateway.get("/jobs", headers=shop)).json()["jobs"]] == ["one"]
        await gateway.post("/generate", json=body("two"), headers=shop)
        refused = await gateway.post("/generate", json=body("three"), headers=shop)
        assert refused.status_code == 429 and refused.json()["error"]["limit"] == "jobs_waiting"


async def test_a_job_that_no_replica_has_sent_is_sent_when_the_broker_is_back(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, gateway: httpx.AsyncClient
) -> None:
    async with worker(tmp_path / "worker", engine, broker):
        broker.kill()
        assert (await gateway.post("/generate", json=body("one"))).status_code == 202
        shown = await gateway.get("/ready")
        assert shown.status_code == 503 and "broker" in shown.json()["reason"]
        await broker.start()
        await until_status(gateway, "one", "completed")
    assert len(engine.runs) == 1


async def test_without_its_database_a_gateway_accepts_nothing_and_goes_on_with_it(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, gateway: httpx.AsyncClient, postgres: PostgresServer
) -> None:
    async with worker(tmp_path / "worker", engine, broker):
        await gateway.post("/generate", json=body("one", wait()))
        await until_status(gateway, "one", "generating")
        postgres.kill()
        try:
            refused = await gateway.post("/generate", json=body("two"))
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "database_unreachable"
            assert (await gateway.get("/ready")).status_code == 503
            engine.release()
        finally:
            postgres.start()
        await until_status(gateway, "one", "completed")
        assert (await gateway.post("/generate/sync", json=body("two"))).status_code == 200


async def test_what_a_gateway_stored_before_it_was_killed_another_sends_and_collects(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.gateway.SEND_AGAIN_SECONDS", 0.1)
    async with running_gateway(broker.url, database) as gateway:
        broker.kill()  # so that it stores the job and gets no further
        assert (await gateway.post("/generate", json=body("one"))).status_code == 202
    await broker.start()
    async with running_gateway(broker.url, database) as other, worker(tmp_path / "worker", engine, broker):

        async def is_collected() -> bool:  # the list shows what is in the database
            return [job["status"] for job in (await other.get("/jobs")).json()["jobs"]] == ["completed"]

        await until(is_collected)
    assert len(engine.runs) == 1


async def test_jobs_go_through_nats_too(tmp_path: Path, engine: FakeEngine, database: str) -> None:
    async with nats_server(tmp_path / "nats") as broker, running_gateway(broker.url, database) as gateway:
        (tmp_path / "worker").mkdir()
        async with running_front(tmp_path / "worker", engine, broker_url=broker.url):
            assert (await gateway.post("/generate/sync", json=body("one"))).json()["status"] == "completed"

            async def is_announced() -> bool:
                await asyncio.sleep(0.1)
                return bool((await gateway.get("/queue-info")).json()["workers"])

            await until(is_announced)
            wrong = await gateway.post("/generate", json=body("wrong", {"1": {"class_type": "None", "inputs": {}}}))
            assert wrong.status_code == 422


async def test_an_accepted_job_that_is_too_large_for_the_broker_ends_with_its_webhook(
    tmp_path: Path, engine: FakeEngine, database: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.integrations.nats.jetstream.CONNECT_SECONDS", 0.3)
    local: dict[str, Any] = {"allowed_private_hosts": ("127.0.0.1",)}
    async with nats_server(tmp_path / "nats") as broker, running_gateway(broker.url, database, **local) as gateway:
        broker.kill()  # whose limit cannot be asked for now
        hook = {"url": receiver.url}
        large = body("large", draw("x" * 1_100_000), webhook=hook, metadata={"order": 7})
        assert (await gateway.post("/generate", json=large)).status_code == 202
        await broker.start()
        (tmp_path / "worker").mkdir()
        async with running_front(tmp_path / "worker", engine, broker_url=broker.url, **local):
            ended = await until_status(gateway, "large", "failed")
            assert (ended["error"]["status"], ended["error"]["code"]) == (413, "request_too_large")

            async def has_come() -> bool:
                return bool(receiver.calls)

            await until(has_come)
    ((_, content),) = receiver.calls
    sent = json.loads(content)
    assert (sent["id"], sent["status"], sent["metadata"]) == ("large", "failed", {"order": 7})
    assert not engine.runs


async def test_requests_in_runpods_form_and_in_vasts_envelope_become_jobs_of_the_fleet(
    tmp_path: Path, engine: FakeEngine, broker: RedisServer, gateway: httpx.AsyncClient
) -> None:
    async with worker(tmp_path / "worker", engine, broker):
        done = (await gateway.post("/runsync", json={"input": {"workflow": draw("hello")}})).json()
        assert done["status"] == "COMPLETED" and done["output"]["images"][0]["data"]
        assert (await gateway.get(f"/status/{done['id']}")).json() == done
        queued = (await gateway.post("/run", json={"input": {"workflow_json": wait(0.0)}})).json()
        assert queued["status"] in ("IN_QUEUE", "IN_PROGRESS", "COMPLETED")
        ended = (await gateway.post("/runsync", json={"input": {"workflow_json": draw("ours")}})).json()
        assert ended["output"]["status"] == "completed"
        refused = await gateway.post("/run", json={"input": {"workflow": "none"}})
        assert refused.status_code == 422 and refused.json()["status"] == "FAILED"
        assert (await gateway.get("/status/unknown")).status_code == 404

        envelope = {"auth_data": {"reqnum": 1}, "payload": body("vast-1")}
        assert (await gateway.post("/generate/sync", json=envelope)).json()["status"] == "completed"
        envelope["payload"] = body("vast-2", fail())
        assert (await gateway.post("/generate/sync", json=envelope)).status_code == 422
        assert (await gateway.post("/generate/sync", json=body("plain", fail()))).status_code == 500
        assert (await gateway.post("/generate", json={"payload": {}})).status_code == 422


async def test_what_only_the_fallback_of_a_worker_runs_is_accepted_also_before_its_first_start(
    tmp_path: Path,
    engine: FakeEngine,
    broker: RedisServer,
    gateway: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("darkroom.worker.sources.intake.FLEET_SECONDS", 0.3)
    engine.lacks = frozenset({"Steps"})
    (tmp_path / "fallback").mkdir()
    nowhere = {"1": {"class_type": "NoSuchNode", "inputs": {}}}
    async with FakeEngine(tmp_path / "fallback") as other:
        other.takes_uuids_alone = True
        async with worker(tmp_path / "worker", engine, broker, fallback_engine=other.url):
            producer = RedisBroker(BrokerConfig(url=SecretStr(broker.url)))

            async def is_announced() -> bool:
                return bool(await producer.fleet())

            await until(is_announced)
            assert [json.loads(entry)["num_runs"] for entry in await producer.fleet()] == [1]
            assert (await gateway.post("/generate", json=body("big", draw(size=1000)))).status_code == 422
            assert (await gateway.post("/generate", json=body("unlisted", nowhere))).status_code == 202
            ended = (await gateway.post("/generate/sync", json=body("one", steps()))).json()
            assert (ended["status"], ended["engine"]["name"]) == ("completed", "fallback")
            assert (await gateway.get(f"/result/{ended['id']}")).json() == ended
            assert (await until_status(gateway, "unlisted", "failed"))["error"]["code"] == "request_rejected"

            async def is_listed() -> bool:
                return any(json.loads(entry).get("fallback_nodes") for entry in await producer.fleet())

            await until(is_listed)
            refused = await gateway.post("/generate", json=body("listed", nowhere))
            assert refused.status_code == 422, "the nodes of the fallback are known now"
            assert (await gateway.post("/generate/sync", json=body("two", steps()))).json()["status"] == "completed"
            await producer.close()
