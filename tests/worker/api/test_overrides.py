"""`overrides` of the generate routes: applied before validation, refused with their own field, shown in the result."""

from __future__ import annotations

from typing import Any

from tests.fakes import draw
from tests.worker.prompts.workflows.pages import node, page
from tests.worker.running_front import RunningFront


async def refused(front: RunningFront, workflow: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await front.sync(workflow, **fields)
    assert response.status_code == 422, response.text
    (problem,) = response.json()["error"]["problems"]
    return dict(problem)


async def test_overrides_change_the_prompt_and_are_in_the_result_as_drawn(front: RunningFront) -> None:
    given = {"1.text": "a dog", "#size": "__RANDOM_INT__", "Draw.size": 5, "1.size": None}
    response = await front.sync(draw(), overrides=given, request_id="overridden")
    assert response.json()["parameters"] == {"overrides": {"1.text": "a dog", "1.size": 5}}
    assert (await front.http.get("/result/overridden")).json()["parameters"] == response.json()["parameters"]
    assert "parameters" not in (await front.sync(draw())).json()
    drawn = await front.sync(draw(), overrides={"1.text": "of __RANDOM_INT__, https://a.b/x?token=1 " + "x" * 5000})
    shown = drawn.json()["parameters"]["overrides"]["1.text"]
    assert "__RANDOM_INT__" not in shown and "token=1" not in shown and "characters)" in shown


async def test_a_page_takes_overrides_by_the_titles_of_its_nodes(front: RunningFront) -> None:
    document = page({**node(1, "Draw", ["hello", 8]), "title": "Subject"})
    document["extra"] = {"linearData": {"inputs": [[1, "text"]], "outputs": [1]}}
    response = await front.sync(document, overrides={"Subject.size": 9, "#text": "x"})
    assert response.json()["parameters"] == {"overrides": {"1.size": 9, "1.text": "x"}}, response.text


async def test_wrong_overrides_are_refused_with_their_field(front: RunningFront) -> None:
    problem = await refused(front, draw(), overrides={"1.txt": "x"})
    assert problem["field"] == "input.overrides.1.txt" and "1.text" in problem["allowed"]
    problem = await refused(front, draw(), overrides={"#size": 65})
    assert problem["field"] == "input.overrides.#size" and problem["node_id"] == "1"
    both = {"input": {"modifier": "Text2Image", "modifications": {"prompt": "x"}, "overrides": {"1.a": 1}}}
    response = await front.http.post("/generate/sync", json=both)
    assert response.status_code == 422 and "overrides" in response.text
    assert front.engine.runs == []


async def test_the_same_id_with_other_overrides_is_another_body(front: RunningFront) -> None:
    await front.sync(draw(), overrides={"1.size": 4}, request_id="same")
    again = await front.sync(draw(), overrides={"1.size": 4}, request_id="same")
    other = await front.sync(draw(), overrides={"1.size": 5}, request_id="same")
    assert (again.status_code, other.status_code) == (200, 409)
    assert len(front.engine.runs) == 1
