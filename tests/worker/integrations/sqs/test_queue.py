"""Jobs from SQS, with moto's server, a real front and a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer
from pydantic import SecretStr

from darkroom.worker.engines.supervisor import free_port
from darkroom.worker.integrations.sqs.queue import SqsBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import BrokerUnreachable
from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import running_front, until


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class Queues:
    """The queues of a test: jobs, results, and the redrive queue of jobs."""

    def __init__(self, endpoint: str) -> None:
        self.client = cast(Any, get_session().create_client("sqs", region_name="eu-west-1", endpoint_url=endpoint))
        self.dead = self._new("dead", {})
        arn = self.client.get_queue_attributes(QueueUrl=self.dead, AttributeNames=["QueueArn"])["Attributes"][
            "QueueArn"
        ]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "10"})
        self.jobs, self.results = self._new("jobs", {"RedrivePolicy": policy}), self._new("results", {})
        self.events, self.cancels = self._new("events", {}), self._new("cancels", {})

    def _new(self, name: str, attributes: dict[str, str]) -> str:
        return str(self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def put(self, job_id: str, workflow: dict[str, Any], **fields: Any) -> None:
        body = json.dumps({"input": {"workflow_json": workflow, **fields}})
        named = {"id": {"DataType": "String", "StringValue": job_id}}
        self.client.send_message(QueueUrl=self.jobs, MessageBody=body, MessageAttributes=named)

    async def taken(self, queue: str) -> list[Any]:
        """Take what is in a queue."""
        found = await asyncio.to_thread(
            self.client.receive_message, QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        )
        for message in found.get("Messages", ()):
            self.client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        return list(found.get("Messages", ()))

    async def result(self) -> dict[str, Any]:
        found: list[Any] = []

        async def has_come() -> bool:
            found.extend(await self.taken(self.results))
            return bool(found)

        await until(has_come)
        ended: dict[str, Any] = json.loads(found[0]["Body"])
        return ended


@pytest.fixture
async def queues(endpoint: str) -> AsyncIterator[Queues]:
    yield await asyncio.to_thread(Queues, endpoint)


def broker_of(url: str, lease_seconds: float = 30.0) -> SqsBroker:
    return SqsBroker(BrokerConfig(url=SecretStr(url), lease_seconds=lease_seconds))


@pytest.fixture
def endpoint_of_another_machine() -> Iterator[str]:
    """The server as a process of its own, with a clock of its own."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        assert process.poll() is None and time.monotonic() < until, "moto does not answer"
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.mark.parametrize("skew_seconds", [-7200.0, 7200.0])
async def test_a_worker_whose_clock_is_wrong_takes_jobs_with_time_limits(
    tmp_path: Path,
    engine: FakeEngine,
    endpoint_of_another_machine: str,
    skew_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = await asyncio.to_thread(Queues, endpoint_of_another_machine)
    await asyncio.to_thread(queues.put, "late", draw("late"), expires=0.1)
    await asyncio.sleep(4)  # its time is over before any worker looks, to the second
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew_seconds)
    async with running_front(tmp_path, engine, broker_url=queues.jobs, broker_result_queue=queues.results):
        late = await queues.result()
        assert (late["id"], late["error"]["code"]) == ("late", "job_expired")
        await asyncio.to_thread(queues.put, "one", draw(), expires=600)
        assert (await queues.result())["status"] == "completed"


async def test_jobs_end_in_the_queue_of_results_and_wrong_ones_among_the_dead_letters(
    tmp_path: Path, engine: FakeEngine, queues: Queues
) -> None:
    settings: dict[str, Any] = {
        "broker_url": queues.jobs,
        "broker_result_queue": queues.results,
        "broker_lease_seconds": 2.0,
    }
    async with running_front(tmp_path, engine, **settings) as front:
        queues.put("first", wait(2.5))  # longer than its lease
        ended = await queues.result()
        assert (ended["id"], ended["status"]) == ("first", "completed") and ended["output"]
        queues.put("wrong", {"1": {"class_type": "NoSuchNode", "inputs": {}}})
        assert (await queues.result())["error"]["problems"][0]["class_type"] == "NoSuchNode"
        (letter,) = await queues.taken(queues.dead)
        assert letter["MessageAttributes"]["reason"]["StringValue"] == "request_rejected"
        assert await queues.taken(queues.jobs) == []
        assert (await front.http.get("/health")).json()["broker"]["state"] == "connected"
    assert len(engine.runs) == 1


async def test_a_lease_that_runs_out_goes_to_another_and_one_given_back_at_once(queues: Queues) -> None:
    first, second = broker_of(queues.jobs, 1), broker_of(queues.jobs)
    for broker in (first, second):
        await broker.connect("any")
    queues.put("one", draw())
    lost = (await first.receive(1, []))[0]
    taken: list[Any] = []

    async def is_taken() -> bool:
        taken.extend(await second.receive(1, []))
        return bool(taken)

    await until(is_taken)
    assert (lost.job_id, lost.num_deliveries, taken[0].num_deliveries) == ("one", 1, 2)
    assert await second.renew([taken[0].receipt]) == {taken[0].receipt}
    assert await second.give_back(taken[0].receipt)
    (again,) = await first.receive(1, [])
    await first.finish("one", again.receipt, b"{}")
    assert await first.renew([again.receipt]) == set()
    await first.finish("one", again.receipt, b"{}")  # of no effect
    for broker in (first, second):
        await broker.close()


async def test_a_queue_that_is_not_there_is_named(endpoint: str) -> None:
    broker = broker_of(f"{endpoint}/123456789012/nothing")
    with pytest.raises(BrokerUnreachable, match="nothing"):
        await broker.connect("any")
    gone = broker_of("http://127.0.0.1:1/123456789012/jobs")
    with pytest.raises(BrokerUnreachable, match="the connection was refused"):
        await gone.connect("any")


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/jobs", "eu-west-1"),
        ("sqs://sqs.us-gov-west-1.amazonaws.com/123456789012/jobs", "us-gov-west-1"),
    ],
)
def test_the_region_is_that_of_the_queue(url: str, region: str) -> None:
    assert broker_of(url)._sqs().meta.region_name == region


async def test_progress_goes_to_a_queue_and_a_message_in_another_one_cancels_a_running_and_a_waiting_job(
    tmp_path: Path, engine: FakeEngine, queues: Queues
) -> None:
    more: dict[str, Any] = {"broker_event_queue": queues.events, "broker_cancel_queue": queues.cancels}
    async with running_front(
        tmp_path,
        engine,
        broker_url=queues.jobs,
        broker_result_queue=queues.results,
        constants={"broker": {"num_held": 1}},
        **more,
    ) as front:
        queues.put("running", wait())
        await front.until_message("running", "Progress")
        queues.put("waiting", wait())
        named = {"id": {"DataType": "String", "StringValue": "waiting"}}
        cancel = queues.client.send_message
        await asyncio.to_thread(cancel, QueueUrl=queues.cancels, MessageBody="-", MessageAttributes=named)
        await asyncio.to_thread(cancel, QueueUrl=queues.cancels, MessageBody="running")
        ended: dict[str, str] = {}

        async def have_ended() -> bool:
            for message in await queues.taken(queues.results):
                result = json.loads(message["Body"])
                ended[result["id"]] = result["status"]
            return len(ended) == 2

        await until(have_ended)
        assert ended == {"running": "cancelled", "waiting": "cancelled"}
        events: list[dict[str, Any]] = []

        async def has_progress() -> bool:
            events.extend(json.loads(message["Body"]) for message in await queues.taken(queues.events))
            return any(event["id"] == "running" and event["status"] == "generating" for event in events)

        await until(has_progress)


async def test_workers_see_a_cancellation_one_after_the_other_and_it_goes_with_its_job(queues: Queues) -> None:
    config = BrokerConfig(url=SecretStr(queues.jobs), cancel_queue=queues.cancels)
    one, two = SqsBroker(config), SqsBroker(config)
    await asyncio.to_thread(queues.client.send_message, QueueUrl=queues.cancels, MessageBody="late")
    for broker in (one, two, two):
        assert await broker.cancelled(["other", "late"]) == {"late"}
    queues.put("late", draw())
    (delivery,) = await two.receive(1, [])
    await two.finish("late", delivery.receipt, b"{}")
    assert await two.cancelled(["late"]) == set() and await one.cancelled(["late"]) == {"late"}, "it was seen there"
    await one.close()
    await two.close()
