"""POST /generate/batch: each input becomes a job or is refused for itself."""

from __future__ import annotations

from typing import Any

from tests.fakes import draw
from tests.worker.running_front import RunningFront


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
