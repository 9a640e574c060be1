"""Workers that ask a gateway for jobs: real HTTP, a real broker and a real database, and what a token may not do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from pydantic import SecretStr

from darkroom.worker.gateway import fleet, result_memory, worker_routes
from darkroom.worker.gateway.large_replies import written_reply
from darkroom.worker.gateway.workers import desk, tokens
from darkroom.worker.integrations.gateway.http_broker import HttpBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import BrokerRefused, Delivery
from darkroom.worker.sources.fleet_entries import DIGEST_LENGTH
from tests.fakes import FakeEngine, draw, wait
from tests.worker.gateway.running_gateway import running_gateway
from tests.worker.postgres_server import PostgresServer
from tests.worker.running_front import RunningFront, running_front, until
from tests.worker.sources.servers import nats_server, redis_server

LEASE_SECONDS = 1.0
KEYS: dict[str, Any] = {"api_keys": ("shop:shop-secret",), "admin_api_keys": ("ops:ops-secret",)}


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture
async def broker_url(tmp_path: Path) -> AsyncIterator[str]:
    async with redis_server(tmp_path / "redis") as server:
        yield server.url


@pytest.fixture
async def gateway(broker_url: str, database: str) -> AsyncIterator[httpx.AsyncClient]:
    async with running_gateway(broker_url, database, broker_lease_seconds=LEASE_SECONDS) as http:
        yield http


async def token_of(gateway: httpx.AsyncClient, name: str) -> str:
    made = await gateway.post("/api/v1/worker-tokens", json={"name": name})
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


async def asking(gateway: httpx.AsyncClient, name: str, token: str = "") -> HttpBroker:
    """Return the worker's side, connected with a new token unless there is one."""
    secret = SecretStr(token or await token_of(gateway, name))
    broker = HttpBroker(BrokerConfig(gateway_url=str(gateway.base_url), worker_token=secret))
    await broker.connect(name)
    return broker


async def taken(broker: HttpBroker) -> Delivery:
    async with asyncio.timeout(60):
        while not (found := await broker.receive(1, [])):
            pass
    return found[0]


@contextlib.asynccontextmanager
async def worker(folder: Path, engine: FakeEngine, gateway: httpx.AsyncClient) -> AsyncIterator[RunningFront]:
    """Run a front with a token that has its folder's name."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    given: dict[str, Any] = {"gateway_url": str(gateway.base_url), "worker_token": await token_of(gateway, folder.name)}
    async with running_front(folder, engine, **given) as front:
        yield front


def body(job_id: str, workflow: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"input": {"workflow_json": workflow or draw(), "request_id": job_id}}


@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_a_job_goes_to_a_worker_that_asks_and_its_image_comes_back(
    tmp_path: Path, engine: FakeEngine, database: str, kind: str
) -> None:
    started = redis_server if kind == "redis" else nats_server
    async with (
        started(tmp_path / kind) as server,
        running_gateway(server.url, database) as gateway,
        worker(tmp_path / "worker", engine, gateway) as front,
    ):
        ended = (await gateway.post("/generate/sync", json=body("one"))).json()
        assert (ended["status"], ended["id"]) == ("completed", "one") and ended["output"][0]["data"]
        await gateway.post("/generate", json=body("two", wait()))
        statuses = []
        async with gateway.stream("GET", "/stream/two") as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    statuses.append(json.loads(line[6:])["status"])
                    if statuses[-1] == "generating":
                        engine.release()
        assert "generating" in statuses and statuses[-1] == "final_result"

        async def is_announced() -> bool:
            return bool((await gateway.get("/queue-info")).json()["workers"] == 1)

        await until(is_announced)
        health = (await front.http.get("/health")).json()["broker"]
        assert (health["broker"], health["state"]) == (str(gateway.base_url), "connected")
    assert len(engine.runs) == 2


async def test_a_worker_cannot_act_on_jobs_of_another(gateway: httpx.AsyncClient) -> None:
    await gateway.post("/generate", json=body("one"))
    token = await token_of(gateway, "other")
    first, other = await asking(gateway, "first"), await asking(gateway, "other", token)
    held = await taken(first)
    assert await other.renew([held.receipt]) == set() and await first.renew([held.receipt]) == {held.receipt}
    headers = {"Authorization": f"Bearer {token}", "Darkroom-Worker": "other"}
    for receipt in (held.receipt, held.receipt[:-1] + "0", "", "é", "W10=." + "0" * 64):
        sent = {name.encode(): value.encode() for name, value in (headers | {"Darkroom-Receipt": receipt}).items()}
        forged = await gateway.put("/api/v1/worker/result", content=b'{"status": "completed"}', headers=sent)
        assert (forged.status_code, forged.json()["error"]["code"]) == (404, "receipt_unknown"), receipt
    for path in ("given-back", "progress"):
        given = {"receipt": held.receipt, "event": {"id": "one", "status": "completed", "message": ""}}
        assert (await gateway.post(f"/api/v1/worker/{path}", json=given, headers=headers)).status_code == 404
    for event in ({"status": "completed"}, {"id": "one", "status": "done", "message": "", "seq": "x"}):
        told = {"receipt": held.receipt, "event": event}
        assert (await gateway.post("/api/v1/worker/progress", json=told, headers=headers)).status_code == 422
    same_token = headers | {"Darkroom-Worker": "first"}  # another worker of another token by the same id
    asked = await gateway.post("/api/v1/worker/renewals", json={"receipts": [held.receipt]}, headers=same_token)
    assert asked.json()["receipts"] == []
    assert (await gateway.get("/result/one")).json()["status"] == "pending"
    ended = json.dumps({"id": "one", "status": "completed", "output": [{"data": "x" * 1_000_000}]}).encode()
    for _ in range(2):  # it may be sent again
        await first.finish(held.job_id, held.receipt, ended)
    shown = (await gateway.get("/result/one")).json()
    assert shown["status"] == "completed" and len(shown["output"][0]["data"]) == 1_000_000
    await first.close()
    await other.close()


async def test_without_a_token_nothing_is_given(broker_url: str, database: str) -> None:
    async with running_gateway(broker_url, database, **KEYS) as gateway:
        for key in ("", "shop-secret", "ops-secret", "worker-none"):
            headers = {"Darkroom-Worker": "one", **({"Authorization": f"Bearer {key}"} if key else {})}
            for method, path in (("POST", "jobs"), ("POST", "renewals"), ("PUT", "result"), ("POST", "announcement")):
                reply = await gateway.request(method, f"/api/v1/worker/{path}", headers=headers, json={})
                assert reply.status_code == 401, (key, path)


async def test_tokens_are_made_listed_and_revoked_by_operators_and_stored_as_digests(
    broker_url: str, database: str
) -> None:
    async with running_gateway(broker_url, database, **KEYS) as gateway:
        path, customer = "/api/v1/worker-tokens", {"Authorization": "Bearer shop-secret"}
        for method in ("GET", "POST"):
            refused = await gateway.request(method, path, json={"name": "pod"}, headers=customer)
            assert refused.status_code == 403
        gateway.headers["Authorization"] = "Bearer ops-secret"
        secret = await token_of(gateway, "pod")
        assert (await gateway.post(path, json={"name": "pod"})).status_code == 422, "its name is in use"
        assert (await gateway.post(path, json={"name": "a/b"})).status_code == 422
        broker = await asking(gateway, "pod", secret)
        (listed,) = (await gateway.get(path)).json()
        assert listed["name"] == "pod" and listed["seen_ms"] >= listed["made_ms"] and listed["revoked_ms"] is None
        assert secret not in (await gateway.get(path)).text
        with psycopg.connect(database) as connection:
            stored = connection.execute("SELECT * FROM darkroom_gateway.worker_tokens").fetchall()
        assert stored and secret not in str(stored) and secret.removeprefix("worker-") not in str(stored)
        assert (await gateway.delete(f"{path}/pod")).status_code == 200
        assert (await gateway.delete(f"{path}/pod")).status_code == 404
        with pytest.raises(BrokerRefused):
            await broker.receive(1, [])
        await broker.close()
        again = await asking(gateway, "pod", await token_of(gateway, "pod"))
        await again.close()


async def test_an_address_that_guesses_tokens_is_told_to_come_later_without_a_look_at_the_database(
    gateway: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_GUESSES", 3)
    known = await asking(gateway, "known")
    asked = []
    for number in range(5):
        secret = f"worker-{number:043}"
        headers = {"Authorization": f"Bearer {secret}", "Darkroom-Worker": "one"}
        asked.append((await gateway.post("/api/v1/worker/connect", headers=headers)).status_code)
    assert asked == [401, 401, 401, 429, 429]
    unseen = await asking(gateway, "unseen", await token_of(gateway, "unseen"))
    await unseen.close()
    await known.renew([])
    await known.connect("known")
    await known.close()


async def test_jobs_whose_reply_has_to_wait_for_memory_go_back_in_time(
    broker_url: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_routes, "REPLY_SECONDS", 0.2)
    monkeypatch.setattr(result_memory, "LARGE_BYTES", 0)
    monkeypatch.setattr(desk, "MAX_REPLIES_BYTES", 0)  # one reply at a time
    writing, written = asyncio.Event(), asyncio.Event()
    write = written_reply

    async def slowly(make: Any) -> Any:
        writing.set()
        await written.wait()
        return await write(make)

    monkeypatch.setattr(worker_routes, "written_reply", slowly)
    async with running_gateway(broker_url, database, broker_lease_seconds=LEASE_SECONDS) as gateway:
        key = {"Authorization": f"Bearer {await token_of(gateway, 'pod')}"}

        async def poll(name: str) -> int:
            headers = {**key, "Darkroom-Worker": name}
            reply = await gateway.post("/api/v1/worker/jobs", json={"wait_seconds": 5, "most": 1}, headers=headers)
            return len(reply.json()["jobs"])

        for name in ("one", "two"):
            await gateway.post("/generate", json=body(name))
        first = asyncio.create_task(poll("first"))
        await writing.wait()
        second = asyncio.create_task(poll("second"))
        await asyncio.sleep(1)
        written.set()
        assert [await first, await second] == [1, 0]
        assert await poll("third") == 1


async def test_a_worker_has_one_poll_at_a_time_and_the_last_request_gets_the_job(gateway: httpx.AsyncClient) -> None:
    headers = {"Authorization": f"Bearer {await token_of(gateway, 'pod')}", "Darkroom-Worker": "one"}

    async def poll() -> list[Any]:
        reply = await gateway.post("/api/v1/worker/jobs", json={"wait_seconds": 20}, headers=headers)
        found: list[Any] = reply.json()["jobs"]
        return found

    polls = []
    for _ in range(3):
        polls.append(asyncio.create_task(poll()))
        await asyncio.sleep(0.1)
    await asyncio.wait(polls[:2], timeout=10)
    assert [one.done() for one in polls] == [True, True, False] and [await one for one in polls[:2]] == [[], []]
    await gateway.post("/generate", json=body("one"))
    assert len(await polls[2]) == 1


async def test_a_revoked_worker_stops_asking_and_another_ends_its_job(
    tmp_path: Path, engine: FakeEngine, gateway: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    async with worker(tmp_path / "revoked", engine, gateway) as front:
        await gateway.post("/generate", json=body("one", wait()))

        async def runs() -> bool:
            return len(engine.runs) == 1

        await until(runs)
        assert (await gateway.delete("/api/v1/worker-tokens/revoked")).status_code == 200

        async def has_stopped() -> bool:
            return "revoked" in str((await front.http.get("/health")).json()["broker"].get("reason"))

        await until(has_stopped)
        assert "broker refuses this worker, no more jobs are asked for" in capsys.readouterr().out
        engine.release_all()
        async with worker(tmp_path / "good", engine, gateway):
            ended = (await gateway.post("/generate/sync", json=body("one", wait()))).json()
            assert ended["status"] == "completed"

        async def num_asked() -> float:
            lines = (await gateway.get("/metrics")).text.splitlines()
            asked = [line for line in lines if 'code="401"' in line and "/api/v1/worker/" in line]
            return sum(float(line.rpartition(" ")[2]) for line in asked)

        before = await num_asked()
        await asyncio.sleep(1.5)
        assert await num_asked() == before > 0


async def test_a_job_that_comes_for_a_worker_that_has_left_goes_to_another_uncounted(
    gateway: httpx.AsyncClient,
) -> None:
    left, other = await asking(gateway, "left"), await asking(gateway, "other")
    waiting = asyncio.create_task(left.receive(1, []))
    await asyncio.sleep(0.3)
    waiting.cancel()
    await left.close()
    await gateway.post("/generate", json=body("one"))
    held = await taken(other)
    assert held.num_deliveries == 1
    await other.close()


async def test_a_result_over_the_limit_comes_without_its_files(
    gateway: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.workers.bodies.MAX_RESULT_BYTES", 100_000)
    await gateway.post("/generate", json=body("one"))
    broker = await asking(gateway, "pod")
    held = await taken(broker)
    ended = {"id": "one", "status": "completed", "output": [{"filename": "a.png", "data": "x" * 200_000}]}
    await broker.finish(held.job_id, held.receipt, json.dumps(ended).encode())
    (shown,) = (await gateway.get("/result/one")).json()["output"]
    assert shown["filename"] == "a.png" and "too large" in shown["error"]
    await broker.close()


@pytest.mark.parametrize("times", [str(10**30), "true", "[" * 20_000 + "]" * 20_000])
async def test_a_result_that_cannot_be_stored_as_it_is_ends_its_job_and_the_next_ones_go_on(
    gateway: httpx.AsyncClient, times: str
) -> None:
    broker = await asking(gateway, "one")
    for job_id in ("bad", "good"):
        await gateway.post("/generate", json=body(job_id))
        held = await taken(broker)
        content = f'{{"id": "{job_id}", "status": "completed", "timings": {{"completed_at_ms": {times}}}}}'
        await broker.finish(
            held.job_id, held.receipt, content.encode() if job_id == "bad" else b'{"status":"completed"}'
        )
    for job_id in ("bad", "good"):
        shown = (await gateway.get(f"/result/{job_id}")).json()
        assert shown["status"] in ("completed", "failed"), shown
    assert shown["status"] == "completed"
    await broker.close()


async def test_a_node_list_of_another_form_stops_no_gateway(
    gateway: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "FRESH_SECONDS", 0.0)
    token = await token_of(gateway, "liar")
    headers = {"Authorization": f"Bearer {token}", "Darkroom-Worker": "liar"}
    for text in (b"x", b"[]", b'{"A": 1}', b"[" * 100_000):
        packed, name = gzip.compress(text), hashlib.sha256(text).hexdigest()[:DIGEST_LENGTH]
        told = {"entry": {"nodes": name}, "lists": {name: base64.b64encode(packed).decode()}}
        reply = await gateway.post("/api/v1/worker/announcement", json=told, headers=headers)
        assert reply.status_code == 200, reply.text
        assert (await gateway.get("/queue-info")).status_code == 200
    accepted = await gateway.post("/generate", json=body("one"))
    assert accepted.status_code in (202, 422), accepted.text
