"""Entries of the outbox are listed without secrets and sent again when asked; a receiver can be tried out."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, draw, steps
from tests.worker.receiver import Receiver
from tests.worker.running_front import RunningFront, running_front, until

PLANTED = ("planted-secret", "planted-token", "planted-words")


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    (tmp_path / "engine").mkdir()
    async with (
        FakeEngine(tmp_path / "engine") as engine,
        running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",), webhook_secret="operators") as running,
    ):
        yield running


async def listed(front: RunningFront, state: str = "") -> dict[str, Any]:
    answer = await front.http.get("/webhooks", params={"state": state} if state else {})
    assert not [secret for secret in PLANTED if secret in answer.text]
    return dict(answer.json())


async def until_state(front: RunningFront, state: str, count: int = 1) -> list[dict[str, Any]]:
    async def is_there() -> bool:
        return len((await listed(front, state))["webhooks"]) >= count

    await until(is_there)
    return list((await listed(front, state))["webhooks"])


def is_signed_with(secret: str, call: tuple[dict[str, str], bytes]) -> bool:
    expected = "sha256=" + hmac.new(secret.encode(), call[1], hashlib.sha256).hexdigest()
    return call[0].get("x-webhook-signature") == expected


async def send(front: RunningFront, receiver: Receiver, request_id: str, **webhook: Any) -> None:
    await front.sync(draw(), request_id=request_id, webhook={"url": f"{receiver.url}?token=planted-token", **webhook})


async def test_a_dead_one_is_listed_and_sent_again_signed_as_before_under_the_same_id(
    front: RunningFront, receiver: Receiver
) -> None:
    receiver.statuses = [410]  # gone for good
    await send(front, receiver, "one", secret="planted-secret")
    [dead] = await until_state(front, "dead")
    assert (dead["request_id"], dead["last_error"], dead["attempts"], dead["url"]) == (
        "one",
        "status 410",
        1,
        receiver.url,
    )
    receiver.statuses = [200]
    answer = await front.http.post(f"/webhooks/{dead['id']}/redeliver")
    assert answer.status_code == 202 and answer.json()["state"] == "pending"
    [delivered] = await until_state(front, "delivered")
    assert delivered["id"] == dead["id"] == receiver.calls[1][0]["webhook-id"] == receiver.calls[0][0]["webhook-id"]
    assert is_signed_with("planted-secret", receiver.calls[1])
    row = await front.front.store.webhooks.find(dead["id"])
    assert row is not None and row.secret is None


async def test_all_dead_ones_are_sent_again_at_once(front: RunningFront, receiver: Receiver) -> None:
    receiver.statuses = [410]
    for name in ("one", "two"):
        await send(front, receiver, name, secret="planted-secret")
    await until_state(front, "dead", 2)
    receiver.statuses = [200]
    assert (await front.http.post("/webhooks/redeliver")).json() == {"redelivered": 2}
    await until_state(front, "delivered", 2)
    assert (await listed(front))["counts"] == {"pending": 0, "delivered": 2, "dead": 0}
    assert all(is_signed_with("planted-secret", call) for call in receiver.calls)


async def test_a_delivered_one_whose_secrets_were_erased_asks_for_them(front: RunningFront, receiver: Receiver) -> None:
    await send(front, receiver, "one", secret="planted-secret")
    [delivered] = await until_state(front, "delivered")
    refused = await front.http.post(f"/webhooks/{delivered['id']}/redeliver")
    assert refused.status_code == 409 and "secret" in refused.json()["message"]
    route = f"/webhooks/{delivered['id']}/redeliver"
    given = {"secret": "planted-secret"}
    refused = await front.http.post(route, json=given)
    assert refused.status_code == 409 and refused.json()["message"].startswith("url: ")
    given["url"] = f"{receiver.url}?token=planted-token"
    assert (await front.http.post(route, json=given)).status_code == 202

    async def came_again() -> bool:
        return len(receiver.calls) == 2

    await until(came_again)
    assert is_signed_with("planted-secret", receiver.calls[1])


async def test_an_unknown_id_and_an_unknown_state_are_the_callers_errors(front: RunningFront) -> None:
    assert (await front.http.post("/webhooks/msg_none/redeliver")).status_code == 404
    assert (await front.http.get("/webhooks", params={"state": "lost"})).status_code == 422


async def test_a_receiver_is_tried_once_and_nothing_is_kept(front: RunningFront, receiver: Receiver) -> None:
    answer = await front.http.post("/webhooks/test", json={"url": receiver.url, "secret": "planted-secret"})
    assert answer.json() == {"delivered": True, "error": None}
    assert is_signed_with("planted-secret", receiver.calls[0]) and json.loads(receiver.calls[0][1])["status"] == "test"
    receiver.statuses = [500]
    assert (await front.http.post("/webhooks/test", json={"url": receiver.url})).json()["error"] == "status 500"
    assert "x-webhook-signature" not in receiver.calls[1][0]  # the operator's secret is for the operator's address
    assert (await front.http.post("/webhooks/test", json={})).status_code == 422
    assert (await front.http.post("/webhooks/test", json={"url": "http://10.0.0.1/"})).status_code == 422
    assert (await listed(front))["webhooks"] == []


async def test_events_are_sent_when_they_are_asked_for_and_none_after_the_end(
    front: RunningFront, receiver: Receiver
) -> None:
    events = ["queued", "started", "progress"]
    hook = {"url": receiver.url, "events": events, "secret": "mine", "extra_params": {"a": 1}}
    workflow = steps(4, hold=2)
    await front.http.post(
        "/generate", json={"input": {"workflow_json": workflow, "request_id": "one", "webhook": hook}}
    )

    async def has_come(count: int) -> bool:
        return len(receiver.calls) >= count

    await until(lambda: has_come(3))
    front.engine.go_on.set()
    await front.until("one", "completed")
    await until_state(front, "delivered")
    bodies = [json.loads(body) for _, body in receiver.calls]
    assert [body["event"] for body in bodies[:3]] == events and bodies[-1]["event"] == "ended"
    assert [body["event"] for body in bodies].count("ended") == 1
    percents = [body["progress"]["percent"] for body in bodies[:-1]]
    assert percents == sorted(percents) and 0 < percents[2] < 100
    assert all(body["extra"] == {"a": 1} for body in bodies)
    assert all(is_signed_with("mine", call) for call in receiver.calls)


async def test_the_routes_need_a_key_where_the_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine").mkdir()
    async with (
        FakeEngine(tmp_path / "engine") as engine,
        running_front(tmp_path, engine, admin_api_keys=("k",)) as front,
    ):
        monkeypatch.setattr("darkroom.worker.guard.auth.is_loopback", lambda host: False)
        for method, route in (
            ("GET", "/webhooks"),
            ("GET", "/webhooks?has_vast_envelope=true"),
            ("POST", "/webhooks/redeliver"),
            ("POST", "/webhooks/x/redeliver"),
            ("POST", "/webhooks/test"),
        ):
            assert (await front.http.request(method, route, json={})).status_code == 401, route
        allowed = await front.http.get("/webhooks", headers={"Authorization": "Bearer k"})
        assert allowed.status_code == 200


async def test_where_everyone_may_send_jobs_only_the_machine_itself_sees_the_receivers(
    front: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await front.http.get("/webhooks")).status_code == 200
    monkeypatch.setattr("darkroom.worker.guard.auth.is_loopback", lambda host: False)  # as if from another machine
    assert (await front.http.get("/queue-info")).json()["jobs"] == []
    assert (await front.http.get("/webhooks")).status_code == 401


async def test_wrong_events_are_refused_with_those_there_are(front: RunningFront) -> None:
    answer = await front.sync(draw(), webhook={"url": "https://example.com/", "events": ["finished"]})
    [problem] = answer.json()["error"]["problems"]
    assert answer.status_code == 422 and problem["field"] == "input.webhook.events.0"
    assert "'progress' or 'output'" in str(problem)


async def test_a_malformed_question_is_refused_in_the_form_of_every_refusal(front: RunningFront) -> None:
    for answer, field in (
        (await front.http.get("/webhooks", params={"limit": 0}), "query.limit"),
        (await front.http.post("/webhooks/test", json={"uri": "planted-token"}), "body.uri"),
    ):
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "request_rejected"
        assert [problem["field"] for problem in answer.json()["error"]["problems"]] == [field]
        assert "planted-token" not in answer.text
