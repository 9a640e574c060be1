"""GET /packs and GET /keys."""

from __future__ import annotations

from pathlib import Path

from darkroom.worker.api.operating import pack_list
from tests.fakes import FakeEngine, draw
from tests.worker.api.test_openapi import assert_as_declared
from tests.worker.running_front import RunningFront, running_front


async def test_keys_are_listed_with_limits_and_jobs_and_without_secrets(tmp_path: Path, engine: FakeEngine) -> None:
    keys = "shop:abcdef:submit+read,shop:zyxwvu:submit,ops:ghijkl:admin"
    limits = "jobs_waiting=7,stored_bytes=100000000"
    async with running_front(tmp_path, engine, api_keys=keys, caller_limits=limits) as front:
        shop, ops = ({"Authorization": f"Bearer {secret}"} for secret in ("abcdef", "ghijkl"))
        sent = await front.http.post("/generate/sync", json={"input": {"workflow_json": draw()}}, headers=shop)
        assert sent.status_code == 200
        reply = await front.http.get("/keys", headers=ops)
        assert_as_declared(reply, "get", "/keys", (await front.http.get("/openapi.json", headers=ops)).json())
        assert "abcdef" not in reply.text
        found = reply.json()
        assert (found["limits"]["jobs_waiting"], found["limits"]["requests_per_second"]) == (7, None)
        shown = {key["name"]: key for key in found["keys"]}
        assert list(shown) == ["shop", "ops"]
        assert (shown["shop"]["scopes"], shown["shop"]["jobs_waiting"]) == (["read", "submit"], 0)
        assert shown["shop"]["stored_bytes"] > 0 and shown["shop"]["has_limits"]
        assert (shown["ops"]["stored_bytes"], shown["ops"]["has_limits"]) == (None, False)


async def test_packs_are_unknown_without_an_engine_of_ours(front: RunningFront) -> None:
    reply = await front.http.get("/packs")
    assert_as_declared(reply, "get", "/packs", (await front.http.get("/openapi.json")).json())
    assert reply.json() == {"packs": None, "problem": None}


def test_packs_have_their_outcome_and_how_they_compare_with_the_manifest() -> None:
    answer = {
        "packs": [
            {"name": "good", "status": "loaded", "seconds": 0.1, "nodes": ["A", "B"], "error": None, "missing": []},
            {"name": "bad", "status": "failed", "nodes": [], "error": "no module", "missing": ["x.y"]},
        ],
        "versions": [{"name": "good", "state": "changed"}, {"name": "gone", "state": "missing"}],
        "manifest_problem": "packs.toml: is not TOML",
    }
    found = pack_list(answer)
    assert found["problem"] == "packs.toml: is not TOML"
    assert [(pack["name"], pack["status"], pack["state"], pack["num_nodes"]) for pack in found["packs"]] == [
        ("good", "loaded", "changed", 2),
        ("bad", "failed", None, 0),
        ("gone", "absent", "missing", 0),
    ]
