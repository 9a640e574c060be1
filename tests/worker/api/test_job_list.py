"""The list of jobs, their deletion, and what a request says about its own job: metadata, time limit, expiry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.storage import job_search
from tests.fakes import FakeEngine, draw, fail, wait
from tests.worker.receiver import Receiver
from tests.worker.running_front import RunningFront, running_front, until

KEYS: dict[str, Any] = {
    "api_keys": ("shop:shop-secret:submit+read", "studio:studio-secret:submit+read"),
    "admin_api_keys": ("ops:ops-secret",),
}
SHOP, STUDIO, OPS = ({"Authorization": f"Bearer {name}-secret"} for name in ("shop", "studio", "ops"))


async def made(front: RunningFront, name: str, workflow: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", None)
    given = {"workflow_json": workflow or draw(), "request_id": name, **more}
    reply = await front.http.post("/generate/sync", json={"input": given}, headers=headers)
    ended: dict[str, Any] = reply.json()
    return ended


async def listed(front: RunningFront, headers: dict[str, str] | None = None, **query: Any) -> dict[str, Any]:
    reply = await front.http.get("/jobs", params=query, headers=headers)
    assert reply.status_code == 200, reply.text
    page: dict[str, Any] = reply.json()
    return page


def ids(page: dict[str, Any]) -> list[str]:
    return [job["id"] for job in page["jobs"]]


async def test_pages_go_from_the_newest_to_the_oldest_and_miss_none(front: RunningFront) -> None:
    names = [f"job-{number}" for number in range(7)]
    for name in names:
        await made(front, name)
    page = await listed(front, limit=3)
    seen = ids(page)
    await made(front, "newer")  # what comes in between moves nothing
    while page["next_cursor"]:
        page = await listed(front, limit=3, cursor=page["next_cursor"])
        seen += ids(page)
    assert seen == names[::-1]
    first = page["jobs"][0]
    assert first["status"] == "completed" and first["timings"]["total_ms"] is not None and "error" not in first


async def test_jobs_are_chosen_by_state_and_time(front: RunningFront) -> None:
    await made(front, "good")
    await made(front, "bad", fail())
    await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "going"}})
    await front.until("going", "generating")
    page = await listed(front, state="failed")
    assert ids(page) == ["bad"] and page["jobs"][0]["error"]["code"] == "node_failed"
    assert ids(await listed(front, state=["failed", "completed"])) == ["bad", "good"]
    since = (await front.http.get("/result/bad")).json()["timings"]["queued_at_ms"]
    assert set(ids(await listed(front, since_ms=since))) >= {"bad", "going"}
    assert "bad" not in ids(await listed(front, before_ms=since))

    async def is_listed_as_running() -> bool:
        return ids(await listed(front, state="generating")) == ["going"]

    await until(is_listed_as_running)
    await front.http.post("/cancel/going")
    assert ids(await listed(front, state="cancelled")) == ["going"]


@pytest.mark.parametrize(
    ("query", "field"),
    [({"state": "done"}, "state"), ({"limit": 0}, "limit"), ({"cursor": "x!"}, "cursor"), ({"since_ms": -1}, "since")],
)
async def test_a_wrong_query_is_refused_with_its_field(front: RunningFront, query: dict[str, Any], field: str) -> None:
    reply = await front.http.get("/jobs", params=query)
    assert reply.status_code == 422 and field in reply.json()["error"]["problems"][0]["field"]


async def test_a_key_lists_and_deletes_its_own_jobs_alone(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **KEYS) as front:
        await made(front, "one", headers=SHOP)
        await made(front, "one", headers=STUDIO)
        await made(front, "two", headers=STUDIO)
        assert ids(await listed(front, SHOP)) == ["one"]
        page = await listed(front, STUDIO)
        assert ids(page) == ["two", "one"] and "owner" not in page["jobs"][0]
        assert [job["owner"] for job in (await listed(front, OPS))["jobs"]] == ["studio", "studio", "shop"]
        assert [job["owner"] for job in (await listed(front, OPS, owner="shop"))["jobs"]] == ["shop"]
        assert (await front.http.get("/jobs", params={"owner": "studio"}, headers=SHOP)).status_code == 403
        assert (await front.http.get("/jobs")).status_code == 401
        assert (await front.http.delete("/jobs/two", headers=SHOP)).status_code == 404
        assert (await front.http.delete("/jobs/one", headers=STUDIO)).status_code == 200
        assert ids(await listed(front, STUDIO)) == ["two"] and ids(await listed(front, SHOP)) == ["one"]


async def test_a_deleted_job_is_gone_with_its_files_and_webhooks(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    async with running_front(tmp_path, engine, webhook_url=receiver.url) as front:
        await _deleted_with_all(front)


async def _deleted_with_all(front: RunningFront) -> None:
    ended = await made(front, "one")
    url = ended["output"][0]["url"]
    assert (await front.http.get(url)).status_code == 200
    assert (await front.http.delete("/jobs/one")).status_code == 200
    assert (await front.http.get("/result/one")).status_code == 404
    assert (await front.http.get(url)).status_code == 404
    assert (await front.http.get("/webhooks")).json()["webhooks"] == []
    assert (await front.http.delete("/jobs/one")).status_code == 404
    again = await made(front, "one", draw("another body"))
    assert again["status"] == "completed", "its id is free"


async def test_a_job_that_goes_on_is_not_deleted(front: RunningFront) -> None:
    await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": "going"}})
    refused = await front.http.delete("/jobs/going")
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "job_not_ended"
    await front.http.post("/cancel/going")
    assert (await front.http.delete("/jobs/going")).status_code == 200


async def test_metadata_comes_back_with_the_result_the_webhook_and_the_list(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    metadata = {"order": 7, "of": {"who": "Zoë"}}
    async with running_front(tmp_path, engine, webhook_url=receiver.url) as front:
        assert (await made(front, "one", metadata=metadata))["metadata"] == metadata
        assert (await listed(front))["jobs"][0]["metadata"] == metadata

        async def has_come() -> bool:
            return bool(receiver.calls)

        await until(has_come)
    assert json.loads(receiver.calls[0][1])["metadata"] == metadata


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metadata": {"a": "x" * 9000}}, "at most 8192"),
        ({"metadata": [1]}, "dictionary"),
        ({"timeout": 0}, "greater than 0"),
        ({"timeout": 7200}, "at most 3600"),
        ({"expires": -1}, "greater than 0"),
        ({"expires": 1e9}, "less than or equal"),
    ],
)
async def test_wrong_fields_are_refused_with_what_is_allowed(
    front: RunningFront, fields: dict[str, Any], words: str
) -> None:
    problem = (await made(front, "one", **fields))["error"]["problems"][0]
    assert problem["field"] == f"input.{next(iter(fields))}" and words in problem["message"]
    assert not front.engine.runs


async def test_a_job_ends_at_the_time_limit_of_its_request(front: RunningFront) -> None:
    ended = await made(front, "one", wait(), timeout=0.2)
    assert ended["status"] == "timeout" and ended["error"]["code"] == "job_timed_out"
    assert ended["error"]["limit_seconds"] == 0.2


async def test_a_job_that_no_engine_begins_in_time_expires(front: RunningFront) -> None:
    for name in ("running", "handed"):
        await front.http.post("/generate", json={"input": {"workflow_json": wait(), "request_id": name, "expires": 60}})
    await front.until("running", "generating")
    late = await made(front, "late", expires=0.1)
    assert late["status"] == "timeout" and late["error"]["code"] == "job_expired" and late["error"]["status"] == 504
    assert late["error"]["expires"] == 0.1
    for name in ("running", "handed"):
        assert (await front.http.get(f"/result/{name}")).json()["status"] in ("processing", "generating")
        await front.http.post(f"/cancel/{name}")
    assert "late-1" not in front.engine.runs
    assert (await made(front, "next", expires=60))["status"] == "completed"
    assert front.front.services.jobs.pipeline.check_integrity() == []


async def test_a_job_expires_while_no_engine_is_there_and_over_a_restart(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        for name in ("running", "handed", "waiting"):
            given = {"workflow_json": wait(), "request_id": name, **({"expires": 1.0} if name == "waiting" else {})}
            await front.http.post("/generate", json={"input": given})
    engine.is_down = True
    async with running_front(tmp_path, engine, waits_until_ready=False) as front:
        assert (await front.until("waiting", "timeout"))["error"]["code"] == "job_expired"
        for name in ("running", "handed"):
            await front.http.post(f"/cancel/{name}")


async def test_details_have_title_parameters_and_links_that_work(front: RunningFront) -> None:
    await made(front, "one", draw("a red fox"))
    (entry,) = (await listed(front, details=True))["jobs"]
    assert (entry["title"], entry["modifier"], entry["parameters"]) == ("a red fox", "", {})
    assert (await front.http.get(entry["output"][0]["url"])).status_code == 200
    assert "path" not in entry["output"][0]
    assert "title" not in (await listed(front))["jobs"][0]
    whole = (await front.http.get("/jobs/one")).json()
    assert whole["workflow_json"] == draw("a red fox") and whole["output"] == entry["output"]
    assert (await front.http.get("/jobs/nobody")).status_code == 404


async def test_a_search_finds_prompts_and_goes_on_behind_what_it_looked_through(front: RunningFront) -> None:
    for number, text in enumerate(("a red fox", "a Blue_fox, 50% off", "ein grüner Frosch", "a fox")):
        await made(front, f"job-{number}", draw(text))
    assert ids(await listed(front, search="FOX")) == ["job-3", "job-1", "job-0"]
    assert ids(await listed(front, search="grüner")) == ["job-2"]
    assert ids(await listed(front, search="blue_fox, 50%")) == ["job-1"]
    assert ids(await listed(front, search="blue%fox")) == []
    first = await listed(front, search="fox", limit=2)
    assert ids(first) == ["job-3", "job-1"]
    second = await listed(front, search="fox", limit=2, cursor=first["next_cursor"])
    assert (ids(second), second["next_cursor"]) == (["job-0"], None)
    assert (await front.http.get("/jobs", params={"search": "x" * 201})).status_code == 422


async def test_a_search_ends_at_its_characters_and_goes_on_there(
    front: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_search, "SEARCHED_AT_ONCE", 2)
    monkeypatch.setattr(job_search, "SEARCHED_LENGTH", 10)
    for number, text in enumerate(("a fox", "a cat", "a dog")):
        await made(front, f"job-{number}", draw(text))
    first = await listed(front, search="fox")
    assert ids(first) == [] and first["next_cursor"]
    second = await listed(front, search="fox", cursor=first["next_cursor"])
    assert (ids(second), second["next_cursor"]) == (["job-0"], None)


async def test_a_search_does_not_find_what_its_caller_may_not_read(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **KEYS) as front:
        stored = {"workflow_json": draw("of the house"), "inputs": {}}
        assert (await front.http.put("/workflows/poster", json=stored, headers=OPS)).status_code == 201
        signed = {"workflow_json": draw("http://example.org/a.png?token=abc"), "request_id": "signed"}
        first = [{"workflow_json": wait(), "request_id": name} for name in ("running", "handed")]
        for given in (*first, {"workflow": "poster", "request_id": "ours"}, signed):
            assert (await front.http.post("/generate", json={"input": given}, headers=SHOP)).status_code in (200, 202)

        async def found(text: str, key: dict[str, str]) -> list[str]:
            page = (await front.http.get("/jobs", params={"search": text}, headers=key)).json()
            return [job["id"].rpartition("/")[2] for job in page["jobs"]]

        assert await found("the house", SHOP) == [] and await found("the house", OPS) == ["ours"]
        assert await found("example.org", SHOP) == ["signed"] and await found("token=a", SHOP) == []
        for name in ("signed", "ours", "handed", "running"):
            await front.http.post(f"/cancel/{name}", headers=SHOP)


async def test_the_prompt_of_a_stored_workflows_job_is_for_operators(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **KEYS) as front:
        stored = {"workflow_json": draw("ours"), "inputs": {"size": "1.size"}}
        assert (await front.http.put("/workflows/poster", json=stored, headers=OPS)).status_code == 201
        body = {"input": {"workflow": "poster", "request_id": "one"}}
        assert (await front.http.post("/generate/sync", json=body, headers=SHOP)).status_code == 200
        shown = [(await front.http.get("/jobs/one", headers=key)).json() for key in (SHOP, OPS)]
        assert "workflow_json" not in shown[0] and shown[1]["workflow_json"] == draw("ours")
        assert shown[0]["parameters"] == {"workflow": "poster@1"}
        assert (await front.http.get("/jobs/one", headers=STUDIO)).status_code == 404
