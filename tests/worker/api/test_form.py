"""POST /form: a workflow as a form."""

from __future__ import annotations

from tests.fakes import draw, paint
from tests.worker.prompts.workflows.pages import node, page
from tests.worker.running_front import RunningFront

PAGE = page(node(1, "Draw", ["hello", 8]))


async def test_a_page_and_its_prompt_have_the_same_form_and_nothing_runs(front: RunningFront) -> None:
    forms = []
    for body in (PAGE, {"workflow_json": draw()}):
        response = await front.http.post("/form", json=body)
        assert response.status_code == 200, response.text
        forms.append(response.json())
    assert forms[0]["fields"] == forms[1]["fields"]
    assert [(item["target"], item["schema"]["default"]) for item in forms[0]["fields"]] == [
        ("1.text", "hello"),
        ("1.size", 8),
    ]
    assert forms[1]["workflow_json"] == draw()
    assert front.engine.runs == []


async def test_a_target_of_the_form_is_one_of_overrides(front: RunningFront) -> None:
    form = (await front.http.post("/form", json=paint())).json()
    field = next(item for item in form["fields"] if item["input"] == "text")
    body = {"input": {"workflow_json": draw(), "overrides": {field["target"]: "changed"}}}
    result = (await front.http.post("/generate/sync", json=body)).json()
    assert result["parameters"]["overrides"] == {"1.text": "changed"}


async def test_what_is_no_workflow_is_refused(front: RunningFront) -> None:
    unknown = page(node(2, "Drew", inputs=[("x", "IMAGE", 1, None)]))
    for body in ({"workflow_json": "text"}, unknown):
        response = await front.http.post("/form", json=body)
        assert response.status_code == 422
        assert response.json()["error"]["problems"]
