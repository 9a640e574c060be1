"""GET /worker for everybody, GET /engines for operators."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import FakeEngine, draw
from tests.worker.running_front import RunningFront, running_front


async def test_a_worker_names_its_devices_and_what_the_caller_may_do(front: RunningFront) -> None:
    shown = (await front.http.get("/worker")).json()
    assert shown["is_ready"] is True
    assert [set(device) for device in shown["devices"]] in ([], [{"name", "memory_bytes"}])
    assert shown["caller"] == {"key_name": "", "scopes": ["admin", "read", "submit"]}
    assert shown["benchmark"]["verdict"] == "skipped"
    assert (shown["is_demo_only"], shown["jobs"]) == (False, {"num_jobs": 0, "seconds_per_file": None})
    (engine,) = (await front.http.get("/engines")).json()
    assert (engine["state"], engine["memory"]) == ("up", None)


async def test_the_price_of_an_hour_is_told_where_it_is_set(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, worker_price_per_hour=0.4) as front:
        assert (await front.http.get("/worker")).json()["price_per_hour"] == 0.4
        assert (await front.http.get("/models/preview", params={"folder": "loras", "name": "a"})).status_code == 204


async def test_the_pace_of_jobs_is_told_and_kept_over_a_restart(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        body = {"input": {"workflow_json": draw()}}
        assert (await front.http.post("/generate/sync", json=body)).status_code == 200
        assert (await front.http.get("/worker")).json()["jobs"]["num_jobs"] == 1
    async with running_front(tmp_path, engine) as front:
        jobs = (await front.http.get("/worker")).json()["jobs"]
        assert jobs["num_jobs"] == 1 and jobs["seconds_per_file"] is not None


async def test_a_misspelt_field_of_a_refused_request_is_named_with_the_nearest(front: RunningFront) -> None:
    refused = await front.http.post("/generate/sync", json={"input": {"modifer": "Text2Image"}})
    problems = refused.json()["error"]["problems"]
    assert refused.status_code == 422
    assert problems[0]["field"] == "input.modifer" and "did you mean 'modifier'?" in problems[0]["message"]
    assert len(problems) == 2


async def test_without_a_key_nothing_may_be_done_and_engines_are_hidden(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="shop:abcdef:submit+read,eye:ghijkl:read") as front:
        assert (await front.http.get("/worker")).json()["caller"] == {"key_name": "", "scopes": []}
        assert (await front.http.get("/engines")).status_code == 401
        shop, eye = ({"Authorization": f"Bearer {secret}"} for secret in ("abcdef", "ghijkl"))
        known = (await front.http.get("/worker", headers=shop)).json()["caller"]
        assert known == {"key_name": "shop", "scopes": ["read", "submit"]}
        assert (await front.http.get("/worker", headers=eye)).json()["caller"]["scopes"] == ["read"]
        assert (await front.http.get("/engines", headers=shop)).status_code == 403
