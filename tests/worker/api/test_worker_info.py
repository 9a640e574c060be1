"""GET /worker for everybody, GET /engines for operators."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import FakeEngine
from tests.worker.running_front import RunningFront, running_front


async def test_a_worker_names_its_devices_and_what_the_caller_may_do(front: RunningFront) -> None:
    shown = (await front.http.get("/worker")).json()
    assert shown["is_ready"] is True
    assert [set(device) for device in shown["devices"]] in ([], [{"name", "memory_bytes"}])
    assert shown["caller"] == {"key_name": "", "scopes": ["admin", "read", "submit"]}
    assert shown["benchmark"]["verdict"] == "skipped"
    (engine,) = (await front.http.get("/engines")).json()
    assert (engine["state"], engine["memory"]) == ("up", None)


async def test_without_a_key_nothing_may_be_done_and_engines_are_hidden(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="shop:abcdef:submit+read,eye:ghijkl:read") as front:
        assert (await front.http.get("/worker")).json()["caller"] == {"key_name": "", "scopes": []}
        assert (await front.http.get("/engines")).status_code == 401
        shop, eye = ({"Authorization": f"Bearer {secret}"} for secret in ("abcdef", "ghijkl"))
        known = (await front.http.get("/worker", headers=shop)).json()["caller"]
        assert known == {"key_name": "shop", "scopes": ["read", "submit"]}
        assert (await front.http.get("/worker", headers=eye)).json()["caller"]["scopes"] == ["read"]
        assert (await front.http.get("/engines", headers=shop)).status_code == 403
