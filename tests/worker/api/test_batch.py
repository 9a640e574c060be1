"""POST /generate/batch: each input becomes a job or is refused for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, draw
from tests.worker.running_front import RunningFront, running_front, until


async def test_each_input_is_accepted_or_refused_for_itself(front: RunningFront) -> None:
    good = [{"workflow_json": draw(str(index)), "request_id": f"b{index}"} for index in range(3)]
    inputs = [good[0], {"workflow_json": draw(size=65)}, "text", *good[1:], {**good[0], "workflow_json": draw("other")}]
    response = await front.http.post("/generate/batch", json={"inputs": inputs})
    assert response.status_code == 202, response.text
    results = response.json()["results"]
    assert [result["id"] for result in results] == ["b0", "", "", "b1", "b2", "b0"]
    assert [result.get("error", {}).get("status") for result in results] == [None, 422, 422, None, None, 409]
    assert results[1]["error"]["problems"][0]["node_id"] == "1"
    for name in ("b0", "b1", "b2"):
        await front.until(name, "completed")
    again = (await front.http.post("/generate/batch", json={"inputs": good})).json()["results"]
    assert [result["status"] for result in again] == ["completed"] * 3 and len(front.engine.runs) == 3


async def test_a_body_without_inputs_is_refused(front: RunningFront) -> None:
    bodies: list[dict[str, Any]] = [{}, {"inputs": []}, {"inputs": {}}, {"inputs": [{}] * 1001}]
    for body in bodies:
        response = await front.http.post("/generate/batch", json=body)
        assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, "inputs")


async def test_each_input_counts_as_a_request(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"api_keys": "shop:shop-secret", "caller_max_requests_per_second": 1 / 60}
    async with FakeEngine(tmp_path) as engine, running_front(tmp_path, engine, **limits) as front:
        inputs = [{"workflow_json": draw(str(index))} for index in range(3)]
        headers = {"Authorization": "Bearer shop-secret"}
        response = await front.http.post("/generate/batch", json={"inputs": inputs}, headers=headers)
        results = response.json()["results"]
        assert [result.get("error", {}).get("status") for result in results] == [None, 429, 429]
        assert results[1]["error"]["retry_after_seconds"] > 0

        async def is_over() -> bool:
            return len(engine.runs) == 1 and engine.is_idle

        await until(is_over)


async def test_an_unexpected_failure_of_one_input_stops_no_other(
    front: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = front.front.services.requests.prompt_rules
    check_size = rules.check_size

    async def failing(workflow: dict[str, Any], size_bytes: int = 0) -> None:
        if workflow["1"]["inputs"]["text"] == "bad":
            raise ZeroDivisionError("secret detail")
        await check_size(workflow, size_bytes)

    monkeypatch.setattr(rules, "check_size", failing)
    inputs = [{"workflow_json": draw(text), "request_id": text} for text in ("first", "bad", "last")]
    response = await front.http.post("/generate/batch", json={"inputs": inputs})
    results = response.json()["results"]
    assert response.status_code == 202 and "secret detail" not in response.text
    assert [result.get("error", {}).get("status") for result in results] == [None, 500, None]
    assert (results[1]["id"], results[1]["error"]["code"]) == ("bad", "internal_error")
    await front.until("last", "completed")
