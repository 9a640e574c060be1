"""Webhooks against a real receiver: signed, repeated, owed over a restart, never in each other's way."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.fakes import FakeEngine, draw, fail
from tests.worker.receiver import Receiver
from tests.worker.running_front import running_front, until


async def first_call(receiver: Receiver, number: int = 1) -> tuple[dict[str, str], dict[str, Any]]:
    async def has_come() -> bool:
        return len(receiver.calls) >= number

    await until(has_come)
    headers, body = receiver.calls[number - 1]
    return headers, json.loads(body)


async def test_both_endings_are_reported_signed_with_the_extra_parameters(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front:
        hook = {"url": receiver.url, "secret": "hush", "extra_params": {"order": 5}}
        await front.sync(draw(), request_id="good", webhook=hook)
        headers, body = await first_call(receiver)
        raw = receiver.calls[0][1]
        assert headers["x-webhook-signature"] == "sha256=" + hmac.new(b"hush", raw, hashlib.sha256).hexdigest()
        assert set(body) == {"id", "status", "message", "output", "timings", "extra"}
        assert (body["id"], body["status"], body["extra"]) == ("good", "completed", {"order": 5})
        await front.sync(fail(), request_id="bad", webhook=hook)
        assert (await first_call(receiver, 2))[1]["status"] == "failed"


async def test_a_receiver_that_fails_gets_it_again_under_the_same_id_and_the_result_is_not_held_up(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    receiver.statuses = [500, 200]
    async with running_front(tmp_path, engine, webhook_url=receiver.url, webhook_secret="mine") as front:
        assert (await front.sync(draw())).status_code == 200
        first, _ = await first_call(receiver)
        second, _ = await first_call(receiver, 2)
        assert first["webhook-id"] == second["webhook-id"]


async def test_a_receiver_that_hangs_holds_up_no_other(tmp_path: Path, engine: FakeEngine, receiver: Receiver) -> None:
    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)
        writer.close()

    hanging = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = hanging.sockets[0].getsockname()[1]
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",), webhook_timeout=20.0) as front:
        await front.sync(draw("a"), webhook={"url": f"http://127.0.0.1:{port}/"})
        await front.sync(draw("b"), request_id="second", webhook={"url": receiver.url})
        assert (await first_call(receiver))[1]["id"] == "second"
    hanging.close()


async def test_what_a_webhook_leaves_out_comes_from_the_environment(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    async with running_front(tmp_path, engine, webhook_url=receiver.url, webhook_timeout=7.0) as front:
        await front.sync(draw(), request_id="env")
        await front.sync(draw(), request_id="own", webhook={"timeout": 3, "extra_params": {"a": 1}})
        targets = [(await front.front.store.find(name)).request.webhook for name in ("env", "own")]  # type: ignore[union-attr]
        assert [target.timeout_seconds for target in targets if target] == [7.0, 3.0]


async def test_an_empty_secret_switches_the_operators_off(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    async with running_front(tmp_path, engine, webhook_url=receiver.url, webhook_secret="mine") as front:
        await front.sync(draw(), webhook={"secret": ""})
        headers, _ = await first_call(receiver)
        assert "x-webhook-signature" not in headers


async def test_a_webhook_that_was_owed_is_sent_by_the_next_front(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    receiver.statuses = [503]
    async with running_front(tmp_path, engine, webhook_url=receiver.url) as front:
        await front.sync(draw())
        first, _ = await first_call(receiver)
    receiver.statuses, number = [200], len(receiver.calls) + 1
    async with running_front(tmp_path, engine, webhook_url=receiver.url) as front:
        again, _ = await first_call(receiver, number)
        assert again["webhook-id"] == first["webhook-id"]

        async def is_delivered() -> bool:
            row = await front.front.store.webhooks.find(first["webhook-id"])
            return row is not None and row.state == "delivered" and row.secret is None

        await until(is_delivered)


async def test_a_webhook_is_sent_though_the_row_of_its_job_is_damaged(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    receiver.statuses = [503]
    async with running_front(tmp_path, engine, webhook_url=receiver.url) as front:
        await front.sync(draw())
        first, _ = await first_call(receiver)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "darkroom.db")) as database:
        database.execute("UPDATE jobs SET request = '{'")
        database.commit()
    receiver.statuses, number = [200], len(receiver.calls) + 1
    async with running_front(tmp_path, engine, webhook_url=receiver.url):
        again, _ = await first_call(receiver, number)
        assert again["webhook-id"] == first["webhook-id"]


async def test_a_webhook_address_of_a_request_may_not_lie_behind_the_worker(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    async with running_front(tmp_path, engine) as front:
        response = await front.sync(draw(), webhook={"url": receiver.url})
        assert response.status_code == 422
        assert response.json()["error"]["problems"][0]["field"] == "input.webhook.url"
        await asyncio.sleep(0)
        assert receiver.calls == []


async def test_each_output_has_a_notice_of_its_own_that_is_tried_again(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    receiver.statuses = [500, 200]  # one of them is tried again
    prompt = {"1": draw("a")["1"], "2": draw("b")["1"]}
    hook = {"url": receiver.url, "secret": "hush", "events": ["output"], "extra_params": {"order": 5}}
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front:
        result = (await front.sync(prompt, request_id="two", webhook=hook)).json()

        async def have_come() -> bool:
            return len(receiver.calls) >= 4

        await until(have_come)
    bodies = {headers["webhook-id"]: json.loads(body) for headers, body in receiver.calls}
    assert sorted(body["event"] for body in bodies.values()) == ["ended", "output", "output"]
    outputs = sorted((b for b in bodies.values() if b["event"] == "output"), key=lambda body: body["output_index"])
    names = [record["filename"] for record in result["output"]]
    assert [[record["filename"] for record in body["output"]] for body in outputs] == [[name] for name in names]
    assert all((body["id"], body["output_count"], body["extra"]) == ("two", 2, {"order": 5}) for body in outputs)
    assert all("x-webhook-signature" in headers for headers, _ in receiver.calls)
