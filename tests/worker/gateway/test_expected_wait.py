"""Refusals by the expected wait: at once, with the time after which to come again."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from darkroom.worker.api.schemas import GenerateInput
from darkroom.worker.errors import WaitTooLong
from darkroom.worker.gateway import expected_wait, fleet
from darkroom.worker.gateway.expected_wait import (
    certainly_before,
    mean_seconds,
    refuse_long_wait,
    runs_of,
    wait_seconds,
)
from darkroom.worker.integrations.gateway.http_broker import HttpBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import StreamDepth
from darkroom.worker.sources.fleet_entries import NodeList
from tests.fakes import draw
from tests.worker.gateway.running_gateway import LocalGateway


def asked(**limits: float) -> GenerateInput:
    return GenerateInput.model_validate({"workflow_json": draw(), **limits})


def test_seconds_are_those_of_engines_in_the_last_jobs() -> None:
    assert (
        mean_seconds(['{"queued_at_ms": 1, "generation_ms": 2000}', '{"queued_at_ms": 1}', '{"generation_ms": 4000}'])
        == 3.0
    )
    assert mean_seconds([]) == mean_seconds(['{"queued_at_ms": 1}']) == 0.0


def test_a_job_waits_for_those_that_no_worker_is_free_for() -> None:
    assert [wait_seconds(number, 4, 10.0) for number in (0, 3, 4, 11)] == [0.0, 0.0, 2.5, 20.0]


def test_a_worker_counts_as_the_runs_that_it_makes_at_a_time() -> None:
    assert [runs_of(entry) for entry in ({"num_runs": 4}, {}, {"num_runs": "7"}, {"num_runs": -1})] == [4, 1, 1, 1]


def test_at_a_broker_jobs_of_other_keys_do_not_count() -> None:
    depths = [StreamDepth("high", "", 2), StreamDepth("normal", "x", 50), StreamDepth("low", "", 9)]
    assert [certainly_before(depths, priority, "key") for priority in (1, 0, -1)] == [0, 2, 52]
    assert [certainly_before(depths, priority, "") for priority in (1, 0, -1)] == [2, 52, 61], "all are of one owner"


@pytest.mark.parametrize(
    ("limits", "max_seconds", "is_refused", "retry"),
    [
        ({}, None, False, 0), ({"expires": 31}, None, False, 0), ({"expires": 20}, None, True, 10),
        ({"deadline": 40}, None, False, 0), ({"deadline": 34}, None, True, 1), ({"deadline": 2}, None, True, 30),
        ({}, 29, True, 1), ({"expires": 20}, 25, True, 10), ({}, 30, False, 0),
    ],
)  # fmt: skip
def test_the_tightest_limit_decides(
    limits: dict[str, float], max_seconds: float | None, is_refused: bool, retry: float
) -> None:
    given = asked(**limits)
    if not is_refused:
        refuse_long_wait(30.0, 5.0, given, max_seconds)
        return
    with pytest.raises(WaitTooLong) as refused:
        refuse_long_wait(30.0, 5.0, given, max_seconds)
    assert refused.value.retry_after_seconds == retry


async def test_a_gateway_refuses_what_its_workers_cannot_begin_in_time(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(expected_wait, "FRESH_SECONDS", 0.0)
    keys = {"api_keys": ("a:one", "b:two"), "admin_api_keys": ("ops:three",)}
    gateway = LocalGateway("", "", state_directory=tmp_path, **keys)
    await gateway.start()
    async with gateway.client() as http:
        http.headers["Authorization"] = "Bearer three"
        token = (await http.post("/api/v1/worker-tokens", json={"name": "worker"})).json()["token"]
        worker = HttpBroker(BrokerConfig.model_validate({"gateway_url": gateway.url, "worker_token": token}))
        await worker.connect("worker")

        async def sent(key: str, **limits: float) -> httpx.Response:
            body = {"input": {"workflow_json": draw(), **limits}}
            return await http.post("/generate", json=body, headers={"Authorization": f"Bearer {key}"})

        assert (await sent("one", expires=1)).status_code == 202, "nothing is measured yet"
        (job,) = await worker.receive(1, [])
        timings = {"generation_ms": 10_000}
        await worker.finish(job.job_id, job.receipt, json.dumps({"status": "completed", "timings": timings}).encode())
        for _ in range(3):
            assert (await sent("one", expires=1)).status_code == 202, "no worker is there"
        nodes = NodeList.of({"EmptyImage": {}})
        monkeypatch.setattr("darkroom.worker.gateway.routes.check_request", _accept)
        entry = {"nodes": nodes.id, "num_runs": 4}
        await worker.announce(json.dumps(entry).encode(), {nodes.id: nodes.packed})
        assert (await sent("one", expires=1)).status_code == 202, "the worker makes four runs at a time"
        await worker.announce(json.dumps({"nodes": nodes.id}).encode(), {nodes.id: nodes.packed})
        refused = await sent("one", expires=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "wait_too_long"), refused.text
        assert int(refused.headers["Retry-After"]) == 39 and (await sent("one", expires=41)).status_code == 202
        assert (await sent("one")).status_code == 202
        assert (await sent("two", expires=25)).status_code == 202, "another key has its turn before"
        await worker.close()
    await gateway.stop()


async def _accept(*_given: object, **_named: object) -> Any:
    from darkroom.worker.gateway.checks import check_request
    from darkroom.worker.gateway.fleet import NodeLists

    given, modifiers, _lists, rules = _given
    return await check_request(given, modifiers, NodeLists(), rules)  # type: ignore[arg-type]
