"""The queue in the database of gateways, PostgreSQL and SQLite: order, turns, wake-ups, leases and the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from darkroom.worker.errors import StateUnusable
from darkroom.worker.gateway.database import GatewayDatabase
from darkroom.worker.gateway.job_ledger import JobLedger, adder, adopt, leave_queue
from darkroom.worker.gateway.job_records import JobRecords, broker_id, number_of
from darkroom.worker.gateway.queue import consumer
from darkroom.worker.gateway.queue.consumer import DatabaseBroker, Receipt
from darkroom.worker.gateway.queue.notices import SEND
from darkroom.worker.gateway.queue.queue import DatabaseQueue
from darkroom.worker.gateway.queue.statements import NewJob, PostgresStatements
from darkroom.worker.gateway.queue.waiters import Waiters
from darkroom.worker.gateway.result_memory import LARGE_BYTES
from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.sources.broker import BrokerUnreachable, Delivery
from darkroom.worker.storage.database import JOBS, whole_row
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes, Stage
from tests.worker.postgres_server import PostgresServer
from tests.worker.running_front import until
from tests.worker.sources.servers import redis_server

LEASE_SECONDS = 30.0


@dataclass
class Place:
    """A database and the queues of gateways that use it: of one with SQLite, else of as many as are opened."""

    config: DatabaseConfig
    folder: Path
    opened: list[tuple[GatewayDatabase, DatabaseQueue]] = field(default_factory=list)

    async def gateway(self, lease_seconds: float = LEASE_SECONDS) -> tuple[JobRecords, DatabaseQueue]:
        database = GatewayDatabase(self.config, self.folder)
        await database.open()
        queue = DatabaseQueue(database, 3600, JobLedger(database))
        queue.start(lease_seconds)
        async with asyncio.timeout(60):
            await queue.notices.is_heard.wait()
        self.opened.append((database, queue))
        return JobRecords(database), queue

    async def close(self) -> None:
        for database, queue in self.opened:
            await queue.close()
            await database.close()
        self.opened.clear()


@pytest.fixture(params=["sqlite", "postgresql"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    config = DatabaseConfig(url=SecretStr(""))
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        config = server.config(server.new_database())
    place = Place(config, tmp_path)
    yield place
    await place.close()


def worker_of(queue: DatabaseQueue, name: str = "worker", lease_seconds: float = LEASE_SECONDS) -> DatabaseBroker:
    worker = DatabaseBroker(queue, lease_seconds, wait_seconds=0.0)
    worker.holder = name  # connected, without the loops of a gateway
    return worker


def a_job(name: str, owner: str = "shop") -> Job:
    prompt = {"input": {"workflow_json": {}, "webhook": {"url": "https://example.org"}}}
    job = Job(name, 0, "", JobRequest(), prompt, JobTimes(int(time.time() * 1000)), owner=owner)
    job.stage = Stage.WAITING
    return job


async def taken(worker: DatabaseBroker, most: int = 1, models: tuple[str, ...] = ()) -> list[Delivery]:
    return await worker.receive(most, models)


async def ids(worker: DatabaseBroker, most: int = 1, models: tuple[str, ...] = ()) -> list[str]:
    return [one.job_id for one in await taken(worker, most, models)]


async def test_keys_take_turns_within_a_priority_and_each_in_its_own_order(place: Place) -> None:
    _records, queue = await place.gateway()
    worker = worker_of(queue)
    for number in range(6):
        await queue.put(f"a{number}", b"{}", owner="alice")
    assert await ids(worker, 2) == ["a0", "a1"]
    for number in range(2):
        await queue.put(f"b{number}", b"{}", owner="bob")
    await queue.put("c0", b"{}", owner="carol")
    await queue.put("urgent", b"{}", owner="alice", priority=1)
    await queue.put("idle", b"{}", owner="bob", priority=-1)
    order = [job_id for _ in range(8) for job_id in await ids(worker)]
    assert order == ["urgent", "b0", "c0", "a2", "b1", "a3", "a4", "a5"]
    assert await ids(worker, 5) == ["idle"]


async def test_a_job_that_is_given_back_comes_first_and_leaves_its_key_no_more_turns(place: Place) -> None:
    _records, queue = await place.gateway()
    worker = worker_of(queue)
    for number in range(4):
        await queue.put(f"a{number}", b"{}", owner="alice")
    first = await taken(worker, 3)
    await worker.give_back(first[1].receipt)  # it waits again, before its key's next ones
    for number in range(3):
        await queue.put(f"b{number}", b"{}", owner="bob")
    assert await ids(worker, 9) == ["a1", "b0", "a3", "b1", "b2"]


async def test_a_repeated_give_back_ends_no_later_lease(place: Place) -> None:
    _records, queue = await place.gateway()
    worker = worker_of(queue)
    await queue.put("one", b"{}")
    (first,) = await taken(worker)
    assert await worker.give_back(first.receipt)
    assert await worker.renew([first.receipt]) == set(), "it is nobody's"
    (second,) = await taken(worker)
    assert second.num_deliveries == 1 and await worker.give_back(first.receipt)
    assert await ids(worker_of(queue, "other")) == [] and await worker.renew([second.receipt]) == {second.receipt}


async def test_a_key_with_many_jobs_has_its_turns_beside_keys_that_queue_their_next_job_once_one_is_served(
    place: Place,
) -> None:
    _records, queue = await place.gateway()
    worker, others = worker_of(queue), ("b", "c", "d", "")
    for number in range(20):
        await queue.put(f"a-{number}", b"{}", owner="a")
    for name in others:
        await queue.put(f"{name}-0", b"{}", owner=name)
    served: list[str] = []
    for number in range(50):
        (held,) = await taken(worker)
        served.append(held.owner)
        await worker.finish(held.job_id, held.receipt, b"{}")
        if held.owner != "a":
            await queue.put(f"{held.owner}-next-{number}", b"{}", owner=held.owner)
        if number == 25:
            await queue.forget_old()
    assert {served.count(name) for name in ("a", *others)} == {10}


async def test_jobs_that_are_cancelled_or_sent_again_use_up_no_turns_and_win_none(place: Place) -> None:
    records, queue = await place.gateway()
    worker = worker_of(queue)
    for number in range(6):
        await queue.put(f"b{number}", b"{}", owner="bob")
        await queue.put("a-again", b"{}", owner="alice")

    async def send(name: str) -> str:
        job = a_job(name, "alice")
        job.prompt = {"input": {"workflow_json": {}}}  # without a webhook, which would be told of the end
        await records.insert(job, None, adder(queue, "", None))
        return broker_id(job.number)

    async def send_and_cancel(names: Sequence[str]) -> None:
        for job_id in [await send(name) for name in names]:
            await queue.cancel(job_id)
            await queue.settle(job_id, b'{"status": "cancelled"}')

    await send_and_cancel([f"gone-{number}" for number in range(5)])
    kept = await send("kept")
    await send_and_cancel(["gone"])
    last = await send("last")
    assert await ids(worker, 6) == ["b0", "a-again", "b1", kept, "b2", last]
    await send_and_cancel(["gone-later"])
    later = await send("later")
    assert await ids(worker, 9) == ["b3", later, "b4", "b5"], "not before the next job of the other key"


async def test_jobs_of_a_key_that_come_at_once_have_a_turn_each(place: Place) -> None:
    _records, queue = await place.gateway()
    await asyncio.gather(*(queue.put(f"a{number}", b"{}", owner="alice") for number in range(8)))
    turns = await queue.run(lambda connection: connection.execute(sa.text("SELECT turn FROM queue")).scalars().all())
    assert sorted(turns) == list(range(8))


async def test_jobs_without_a_key_do_not_wait_for_each_other(postgres: PostgresServer, tmp_path: Path) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    _records, queue = await place.gateway()
    await queue.put("0", b"{}")
    loop = asyncio.get_running_loop()

    def put(connection: sa.Connection) -> None:
        queue.add(connection, NewJob("1", 1, "", "", "", 2, b"{}"), None)
        asyncio.run_coroutine_threadsafe(queue.put("2", b"{}"), loop).result(timeout=30)

    await queue.run(put)
    assert sorted(await ids(worker_of(queue), 9)) == ["0", "1", "2"]
    await place.close()


async def test_jobs_of_models_that_the_worker_used_come_first_until_another_has_waited(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _records, queue = await place.gateway()
    worker = worker_of(queue)
    for name, model in (("one", "x"), ("two", "y"), ("three", "z"), ("four", "y"), ("five", "")):
        await queue.put(name, b"{}", model=model)
    assert await ids(worker, 1, ("z", "y")) == ["three"]
    assert await ids(worker, 1, ("z", "y")) == ["two"]
    assert await ids(worker, 1, ()) == ["five"], "the stream of any model before that of another one"
    depths = {(depth.priority, depth.model): depth.num_jobs for depth in await queue.depths()}
    assert depths == {("high", ""): 0, ("normal", ""): 1, ("low", ""): 0, **{("normal", m): n for m, n in (
        ("x", 1), ("y", 2), ("z", 1))}}  # fmt: skip
    monkeypatch.setattr("darkroom.worker.gateway.queue.statements.PATIENCE_MS", -1)
    assert await ids(worker, 1, ("y",)) == ["one"]
    assert await ids(worker, 3, ("y",)) == ["four"] and await queue.depth() == 5


async def test_the_jobs_before_a_new_one_are_those_of_its_turns(place: Place) -> None:
    _records, queue = await place.gateway()
    assert await queue.num_before(0, "bob", 1) == 0
    for number in range(9):
        await queue.put(f"a{number}", b"{}", owner="alice")
    await queue.put("c0", b"{}", owner="carol")
    await queue.put("urgent", b"{}", owner="carol", priority=1)
    await ids(worker_of(queue), 2)
    assert await queue.depth() == 11
    assert await queue.num_before(0, "alice", 1) == 1 + 10, "all that are there, and the urgent one that is held"
    assert await queue.num_before(0, "bob", 1) == 1 + 1 + 2, "one of each other key, and what workers hold"
    assert [await queue.num_before(priority, "bob", 1) for priority in (1, -1)] == [1, 11]
    for number in range(2, 9):
        await queue.cancel(f"a{number}")
    assert await queue.num_before(0, "alice", 1) == 1 + 3, "those that are cancelled do not count"
    assert await queue.num_before(-1, "bob", 1) == 4


async def test_a_job_wakes_one_worker_that_waits(place: Place) -> None:
    _records, queue = await place.gateway()
    looks: list[str] = []

    class Counting(DatabaseBroker):
        async def take(self, most: int, models: Sequence[str]) -> tuple[list[Delivery], bool]:
            found = await super().take(most, models)
            looks.append(self.holder)
            return found

    workers = [Counting(queue, LEASE_SECONDS, wait_seconds=60.0) for _ in range(5)]
    for number, worker in enumerate(workers):
        await worker.connect(str(number))
    models = {3: ["fitting"]}
    waiting = [asyncio.create_task(worker.receive(1, models.get(n, []))) for n, worker in enumerate(workers)]
    await until(_is(lambda: len(looks) == 5))
    await queue.put("one", b"{}")
    assert [one.job_id for one in await waiting[0]] == ["one"] and len(looks) == 6
    await queue.put("two", b"{}", model="fitting")
    assert [one.job_id for one in await waiting[3]] == ["two"] and len(looks) == 7
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_wake_takes_the_same_time_however_many_wait() -> None:
    waiters, most = Waiters(), 15_000
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(waiters.waiting([f"m{number % 5}"])) for number in range(most)]
        began = time.process_time()
        assert waiters.wake("m3") and waiters.wake("unknown")
        assert [number for number in range(most) if waiting[number].woken_for is not None] == [0, 3]
        waiters.wake_all()
        assert not waiters.has_any and waiters.wake_some("m3", most) == 0
        assert await waiting[7].is_woken(0) and not await waiting[7].is_woken(0)
        assert waiters.wake_some("m3", most) == 1, "it waits again"
        assert time.process_time() - began < 1, "a look at every waiter for each takes seconds"
    assert not waiters.has_any


async def test_a_worker_that_others_left_nothing_for_looks_again_and_one_that_left_some_wakes_the_next(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    _records, queue = await place.gateway()
    for name in ("one", "two", "three"):
        await queue.put(name, b"{}")
    looks: list[bool] = []

    class Counting(DatabaseBroker):
        async def take(self, most: int, models: Sequence[str]) -> tuple[list[Delivery], bool]:
            found, is_more = await super().take(most, models)
            looks.append(is_more)
            return found, is_more

    workers = [Counting(queue, LEASE_SECONDS, wait_seconds=60.0) for _ in range(3)]
    waiting: list[asyncio.Task[list[Delivery]]] = []
    loop = asyncio.get_running_loop()

    async def wait() -> None:
        waiting.extend(asyncio.create_task(worker.receive(1, [])) for worker in workers)
        await until(_is(lambda: looks == [True] * 3))

    def lock(connection: sa.Connection) -> None:  # as one that is about to take them
        connection.execute(sa.text("SELECT 1 FROM queue FOR UPDATE"))
        asyncio.run_coroutine_threadsafe(wait(), loop).result(30)

    await queue.run(lock)
    async with asyncio.timeout(10):
        assert sorted(job.job_id for found in await asyncio.gather(*waiting) for job in found) == [
            "one",
            "three",
            "two",
        ]
    await place.close()


async def test_a_worker_waits_no_longer_than_it_is_asked_to_and_goes_on_waiting_after_a_wake_for_nothing(
    place: Place,
) -> None:
    _records, queue = await place.gateway()
    worker = DatabaseBroker(queue, LEASE_SECONDS, wait_seconds=60.0)
    async with asyncio.timeout(10):
        assert await worker.receive(1, [], 0.01) == []
        waiting = asyncio.create_task(worker.receive(1, []))
        for _ in range(2):
            await until(_is(lambda: queue.waiters.has_any))
            await queue.wake("")
        await until(_is(lambda: queue.waiters.has_any))
        await queue.put("one", b"{}")
        assert [job.job_id for job in await waiting] == ["one"]


async def test_jobs_that_wait_again_wake_a_worker_each_at_another_gateway(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    (_, first), (_, second) = await place.gateway(), await place.gateway()
    workers = [DatabaseBroker(second, LEASE_SECONDS, wait_seconds=60.0) for _ in range(3)]
    waiting = [asyncio.create_task(worker.receive(1, [])) for worker in workers]
    woken: list[str] = []

    def wake(model: str = "") -> bool:
        woken.append(model)
        return len(woken) <= 3

    monkeypatch.setattr(second.waiters, "wake", wake)
    for _ in range(3):
        await first.wake("x")
    await until(_is(lambda: len(woken) == 3))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await place.close()


async def test_a_reply_has_so_many_bytes_of_jobs_at_most(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "MAX_TAKEN_BYTES", 1000)
    _records, queue = await place.gateway()
    worker = worker_of(queue)
    for number in range(4):
        await queue.put(str(number), b"x" * 700 if number else b"x" * 5000)
    assert [await ids(worker, 4) for _ in range(3)] == [["0"], ["1"], ["2"]]


async def test_a_body_is_sent_once_and_a_connection_that_had_a_large_one_is_closed(place: Place) -> None:
    _records, queue = await place.gateway()
    closed: list[object] = []
    await queue.run(lambda connection: sa.event.listen(connection.engine, "invalidate", lambda *of: closed.append(of)))
    await queue.put("small", b"a body")
    take = partial(queue.statements.take, holder="one", most=1, lease_ms=1000, models=(), most_bytes=10)
    assert [value for value in (await queue.single(take)).rows[0] if value in (b"a body", "a body")] == [b"a body"]
    await queue.put("small, too", b"a body")
    assert await ids(worker_of(queue)) == ["small, too"] and not closed
    await queue.put("large", b"x" * (LARGE_BYTES + 1))
    assert await ids(worker_of(queue)) == ["large"] and len(closed) == 1


async def test_a_lease_that_runs_out_is_free_again_and_may_be_renewed_until_another_has_it(place: Place) -> None:
    _records, queue = await place.gateway()
    short, other = worker_of(queue, "short", 0.05), worker_of(queue, "other")
    await queue.put("one", b"{}")
    (held,) = await taken(short)
    await asyncio.sleep(0.1)
    assert await queue.single(queue.statements.free) == [""]
    assert await short.renew([held.receipt]) == {held.receipt} and await ids(other) == []
    await asyncio.sleep(0.1)
    assert await queue.single(queue.statements.free) == [""]
    (again,) = await taken(other)
    assert again.num_deliveries == 2 and await short.renew([held.receipt]) == set()
    await other.finish("one", again.receipt, b"{}")
    assert await other.renew([again.receipt]) == set() and await queue.depth() == 0
    lost = Receipt("lost", 1, "other").text
    assert await other.renew([lost]) == {lost}, "the database has lost it"


async def test_a_job_of_the_ledger_is_queued_and_ended_with_its_row(place: Place) -> None:
    records, queue = await place.gateway()
    worker, job = worker_of(queue), a_job("one")
    assert await records.insert(job, None, adder(queue, "", None))
    assert not await records.insert(a_job("one"), None, adder(queue, "", None)) and await queue.depth() == 1
    assert number_of(broker_id(job.number)) == job.number
    (held,) = await taken(worker)
    assert (held.job_id, held.owner, held.asked_id) == (broker_id(job.number), "shop", "one")
    assert json.loads(held.body) == job.prompt, "its body is read where it is stored"
    start = (await queue.news("", 0))[0].position
    result = {"status": "completed", "message": "done", "output": [{"data": "x"}]}
    await worker.finish(held.job_id, held.receipt, json.dumps(result).encode())
    await worker.finish(held.job_id, held.receipt, b'{"status": "failed"}')
    ended = await records.find("one")
    assert ended is not None and (ended.state, ended.message) == (JobState.COMPLETED, "done")
    assert ended.outputs == ({"data": "x"},) and await queue.depth() == await records.num_live() == 0
    (told,) = await queue.news(start, 1)
    assert (told.job_id, json.loads(told.event)["status"]) == (held.job_id, "completed")
    assert await worker.renew([held.receipt]) == set() and await worker.give_back(held.receipt)


async def test_what_is_no_result_ends_a_job_as_failed(place: Place) -> None:
    records, queue = await place.gateway()
    worker = worker_of(queue)
    for number, result in enumerate((b"[]", b"{", b'{"timings": 7}')):
        await records.insert(a_job(str(number)), None, adder(queue, "", None))
        (held,) = await taken(worker)
        await worker.finish(held.job_id, held.receipt, result)
        ended = await records.find(str(number))
        assert ended is not None and ended.failure is not None and ended.failure.code == "result_unreadable", result


async def test_a_job_that_is_cancelled_before_a_worker_has_it_is_told_to_one_for_its_webhook(place: Place) -> None:
    records, queue = await place.gateway()
    worker, job = worker_of(queue), a_job("one")
    await records.insert(job, None, adder(queue, "", None))
    name = broker_id(job.number)
    await queue.cancel(name)
    await queue.settle(name, b'{"status": "cancelled"}')
    ended = await records.find("one")
    assert ended is not None and ended.state is JobState.CANCELLED
    (held,) = await taken(worker)
    assert json.loads(held.body) == job.prompt and await worker.cancelled([name]) == {name}
    await worker.finish(name, held.receipt, b'{"status": "completed"}')
    again = await records.find("one")
    assert again is not None and again.state is JobState.CANCELLED and await queue.depth() == 0


async def test_a_cancelled_job_keeps_its_body_for_its_webhook_alone_and_for_a_time(place: Place) -> None:
    records, queue = await place.gateway()
    secret, told = a_job("secret"), a_job("told")
    secret.prompt = {"input": {"workflow_json": {"1": "key"}}}
    for job in (secret, told):
        await records.insert(job, None, adder(queue, "", None))
        for _ in range(2):
            await queue.cancel(broker_id(job.number))
            await queue.settle(broker_id(job.number), b'{"status": "cancelled"}')
    assert await queue.depth() == 1 and await records.num_live() == 0
    await queue.forget_old()
    assert await queue.depth() == 1
    queue.result_seconds = -1
    await queue.forget_old()
    assert await queue.depth() == 0 and await taken(worker_of(queue)) == []
    found = await records.find("told")
    assert found is not None and found.state is JobState.CANCELLED


async def test_a_broker_gets_what_is_cancelled_with_the_jobs_of_the_queue(place: Place, tmp_path: Path) -> None:
    records, queue = await place.gateway()
    jobs = {name: a_job(name) for name in ("settled", "held", "live")}
    for job in jobs.values():
        job.request = JobRequest(priority=1)
        await records.insert(job, None, adder(queue, "", None))
    named = {name: broker_id(job.number) for name, job in jobs.items()}
    assert [one.job_id for one in await taken(worker_of(queue), 2)] == [named["settled"], named["held"]]
    await queue.single(lambda connection: connection.execute(sa.text("UPDATE queue SET holder = NULL")))
    for name in ("settled", "held"):
        await queue.cancel(named[name])
    await queue.settle(named["settled"], b'{"status": "cancelled"}')
    async with redis_server(tmp_path / "redis") as redis:
        producer = RedisBroker(BrokerConfig(url=SecretStr(redis.url)))
        assert [await leave_queue(records, producer) for _ in range(2)] == [3, 0]
        await producer.connect("worker")
        (told,) = await producer.receive(9, [], 0.1)
        assert (told.job_id, told.owner, told.asked_id) == (named["settled"], "shop", "settled")
        assert json.loads(told.body) == jobs["settled"].prompt, "its webhook is sent"
        assert await producer.cancelled(list(named.values())) == {named["settled"], named["held"]}
        assert sum(depth.num_jobs for depth in await producer.depths() if depth.priority == "high") == 1
        await producer.close()
    assert await records.num_unsent() == 2 and await queue.depth() == 0


async def test_a_cancelled_job_that_a_worker_holds_is_not_settled(place: Place) -> None:
    records, queue = await place.gateway()
    worker, job = worker_of(queue), a_job("one")
    await records.insert(job, None, adder(queue, "", None))
    (held,) = await taken(worker)
    await queue.settle(held.job_id, b'{"status": "cancelled"}')
    found = await records.find("one")
    assert found is not None and not found.state.is_terminal


async def test_jobs_of_a_time_with_a_broker_are_queued_once(place: Place) -> None:
    records, queue = await place.gateway()
    for number in range(3):
        job = a_job(str(number))
        job.stage = Stage.QUEUED
        await records.insert(job)
    assert [await adopt(queue), await adopt(queue)] == [3, 0] and await records.num_unsent() == 0
    assert len(await taken(worker_of(queue), 9)) == 3


async def test_jobs_that_are_in_the_queue_are_looked_at_once_each_at_a_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.job_ledger.LOOKED_AT_ONCE", 2, raising=False)
    records, queue = await place.gateway()
    for number in range(5):
        await records.insert(a_job(str(number)), None, adder(queue, "", None) if number % 2 else None)
    plans: list[str] = []
    if not queue.database.is_postgres:

        def explain(connection: sa.Connection) -> None:
            @sa.event.listens_for(connection.engine, "before_cursor_execute")
            def _explain(_connection: object, cursor: Any, statement: str, values: object, *_rest: object) -> None:
                if statement.startswith("SELECT"):
                    plans.extend(row[3] for row in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall())

        await queue.run(explain)
    assert [await adopt(queue), await adopt(queue)] == [3, 0]
    assert not [plan for plan in plans if plan.startswith("SCAN queue")]
    assert len(await taken(worker_of(queue), 9)) == 5


async def test_jobs_and_cancellations_reach_workers_at_other_gateways(postgres: PostgresServer, tmp_path: Path) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    (_, first), (_, second) = await place.gateway(), await place.gateway()
    worker = DatabaseBroker(second, LEASE_SECONDS, wait_seconds=60.0)
    await worker.connect("far")

    async def given(name: str) -> Delivery:
        receiving = asyncio.create_task(worker.receive(1, []))
        await until(_is(lambda: second.waiters.has_any))
        await first.put(name, b"{}")
        async with asyncio.timeout(60):
            while not (found := await receiving):  # it looked when the connection was there again
                receiving = asyncio.create_task(worker.receive(1, []))
        return found[0]

    held = await given("one")
    assert not await worker.cancelled(["one"])
    await first.cancel("one")

    async def is_heard() -> bool:
        return await worker.cancelled(["one"]) == {"one"}

    await until(is_heard)
    await worker.publish("one", b'{"status": "generating"}')
    await until(_is(lambda: first.notes.newest("one") != []))
    await worker.finish("one", held.receipt, b"{}")
    postgres.close_sessions(place.config.url.get_secret_value().rpartition("/")[2])
    with contextlib.suppress(Exception):  # the pool had connections that are closed now
        await first.depth()
    assert (await given("two")).job_id == "two", "who listened does so again"
    await place.close()


async def test_loops_go_on_after_a_failover_and_what_they_do_not_understand(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    name = postgres.new_database()
    place = Place(postgres.config(name), tmp_path)
    (_, first), (_, second) = await place.gateway(0.1), await place.gateway()
    looks: list[sa.Connection] = []

    class Statements(PostgresStatements):
        def free(self, connection: sa.Connection) -> list[str]:
            looks.append(connection)
            return super().free(connection)

    await first.put("one", b"{}")
    await taken(worker_of(first, lease_seconds=60))
    first.statements = Statements()
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        postgres.close_sessions(name)
        with pytest.raises(BrokerUnreachable, match="read-only"):
            await first.put("two", b"{}")
        first.notices.send_soon("event", "one", "lost")
        looks.clear()
        await until(_is(lambda: len(looks) >= 3))
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await first.put("three", b"{}")
    looks.clear()
    await until(_is(lambda: len(looks) >= 2))

    def send(payload: str, connection: sa.Connection) -> None:
        connection.execute(SEND, {"channel": second.notices.channel, "payloads": [payload]})

    async def is_heard() -> bool:
        for payload in ("7", "[]", '["x", "wake"]', '["x", "event", 1]', '["x", "cancel", {}]'):
            await second.single(partial(send, payload))
        await second.publish("one", b"{}")
        await asyncio.sleep(0.05)
        return first.notes.newest("one") == [b"{}"]

    await until(is_heard)
    await first.publish("two", b"{}")
    await until(_is(lambda: second.notes.newest("two") == [b"{}"]))
    await place.close()


async def test_a_cancellation_is_heard_of_though_its_gateway_ends_at_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    (_, first), (_, second) = await place.gateway(), await place.gateway()
    worker = worker_of(second)
    await first.put("one", b"{}")
    assert len(await taken(worker)) == 1 and await worker.cancelled(["one"]) == set()
    without_loops = DatabaseQueue(place.opened[0][0], 3600)
    await without_loops.cancel("one")

    async def is_heard() -> bool:
        return await worker.cancelled(["one"]) == {"one"}

    await until(is_heard)
    await place.close()


async def test_a_cancellation_that_was_not_heard_of_is_found_and_one_that_was_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _records, queue = await place.gateway()
    for name in ("one", "two"):
        await queue.put(name, b"{}")
    real = queue.single

    async def single(function: Callable[[sa.Connection], object]) -> object:
        found = await real(function)
        queue.note_taken("one", is_cancelled=True)
        return found

    monkeypatch.setattr(queue, "single", single)
    assert await queue.cancelled(["one", "two"]) == {"one"}, "it was heard of while an earlier state was read"
    cancel = partial(queue.statements.cancel, job_id="two", channel="nobody", notice="")
    await queue.run(cancel)
    assert await queue.cancelled(["one", "two"]) == {"one"}
    monkeypatch.setattr("darkroom.worker.gateway.queue.queue.LOOK_AGAIN_SECONDS", 0.0)
    assert await queue.cancelled(["one", "two"]) == {"one", "two"}


async def test_claims_at_the_same_time_never_give_a_job_twice(postgres: PostgresServer, tmp_path: Path) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    gateways = [await place.gateway() for _ in range(2)]
    for number in range(40):
        await gateways[0][1].put(str(number), b"{}", owner=f"key-{number % 3}", model=f"m{number % 4}")
    workers = [worker_of(queue, f"{n}-{i}") for n, (_, queue) in enumerate(gateways) for i in range(4)]
    found: list[str] = []

    async def take_all(worker: DatabaseBroker) -> None:
        while got := await ids(worker, 2, ("m1",)):
            found.extend(got)

    await asyncio.gather(*(take_all(worker) for worker in workers))
    found.extend(await ids(workers[0], 40))  # what two of them had locked at a moment
    assert sorted(found, key=int) == [str(number) for number in range(40)]
    await place.close()


async def test_a_job_that_is_queued_while_a_worker_takes_comes_with_its_body(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    records, queue = await place.gateway()
    taking: list[asyncio.Task[list[Delivery]]] = []
    loop, job = asyncio.get_running_loop(), a_job("one")
    job.number = 7

    def begin_taking() -> None:
        taking.append(asyncio.create_task(taken(worker_of(queue))))

    def insert(connection: sa.Connection) -> None:
        connection.execute(sa.text("LOCK TABLE queue IN EXCLUSIVE MODE"))
        loop.call_soon_threadsafe(begin_taking)
        blocked = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = CAST('queue' AS regclass)")
        while not connection.execute(blocked).scalar():
            pass
        connection.execute(sa.insert(JOBS).values(whole_row(job)))
        adder(queue, "", None)(connection, job, 2)

    await records.run(insert)
    (held,) = await taking[0]
    assert json.loads(held.body) == job.prompt
    await place.close()


async def test_a_job_that_ends_while_another_is_queued_makes_no_deadlock(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.database.CROSSED", ())
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    records, queue = await place.gateway()
    counting = sa.text("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE prosrc LIKE '%pg_backend_pid()%'")

    def use_one_slot(connection: sa.Connection) -> None:
        for function in connection.execute(counting).scalars().all():
            connection.exec_driver_sql(function.replace("pg_backend_pid() %", "0 *").replace("%", "%%"))

    await records.run(use_one_slot)
    await records.insert(a_job("one"), None, adder(queue, "", None))
    (held,) = await taken(worker_of(queue))
    loop, finishing, second = asyncio.get_running_loop(), list[asyncio.Task[None]](), a_job("two")
    second.number = 8

    def begin_finishing() -> None:
        finishing.append(asyncio.create_task(queue.finish(held.job_id, b'{"status": "completed"}')))

    def insert(connection: sa.Connection) -> None:
        connection.execute(sa.insert(JOBS).values(whole_row(second)))
        loop.call_soon_threadsafe(begin_finishing)
        while not connection.execute(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar():
            pass
        adder(queue, "", None)(connection, second, 2)

    await records.run(insert)
    await finishing[0]
    assert await queue.depth() == await records.num_live() == 1
    await place.close()


async def test_a_session_of_a_host_that_is_gone_ends_soon_and_one_that_is_in_the_way_is_named(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.database.LEAVING_SECONDS", 0.0)
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    _records, queue = await place.gateway()

    def settings(connection: sa.Connection) -> list[str]:
        names = [f"tcp_keepalives_{name}" for name in ("idle", "interval", "count")]
        return [connection.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names]

    assert await queue.run(settings) == ["30", "10", "3"]
    other = GatewayDatabase(place.config, has_broker=True)
    with pytest.raises(StateUnusable, match=r"one of them from 127\.0\.0\.1 \(session \d+\); stop them all"):
        await other.open()
    await other.close()
    await place.close()


async def test_a_transaction_that_a_deadlock_undid_is_made_again(postgres: PostgresServer, tmp_path: Path) -> None:
    place = Place(postgres.config(postgres.new_database()), tmp_path)
    _records, queue = await place.gateway()
    both, num_calls = threading.Barrier(2), list[int]()

    def lock(first: int, connection: sa.Connection) -> int:
        connection.execute(sa.text("SET LOCAL deadlock_timeout = '5ms'"))
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": first})
        num_calls.append(first)
        if len(num_calls) <= 2:
            both.wait(30)
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": 3 - first})
        return first

    assert await asyncio.gather(*(queue.run(partial(lock, first)) for first in (1, 2))) == [1, 2]
    assert len(num_calls) == 3
    await place.close()


async def test_a_job_without_a_body_goes_to_nobody_and_ends(place: Place) -> None:
    records, queue = await place.gateway()
    job = a_job("one")
    await records.insert(job, None, adder(queue, "", None))
    await records.delete(job)
    await queue.put("two", b"")
    worker = worker_of(queue)
    assert [one.body for one in await taken(worker, 2)] == [b""]
    assert await queue.depth() == 1, "no lease of it runs out again and again"
    dead = await queue.run(lambda connection: connection.execute(sa.text("SELECT job_id, body FROM queue_dead")).all())
    assert [(row.job_id, bytes(row.body)) for row in dead] == [(broker_id(job.number), b"")]
    await queue.run(lambda connection: queue.add(connection, NewJob("alone", 1, "", "", "asked", 2), None))
    assert await taken(worker) == []
    ended = json.loads(await queue.result("alone") or b"")
    assert (ended["id"], ended["status"], ended["error"]["code"]) == ("asked", "failed", "job_lost")


def _is(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return bool(condition())

    return is_so
