"""Rights of a key: its own jobs and nothing of another's; the operator's routes are the operator's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine, draw, running_engine, wait
from tests.worker.running_front import RunningFront, running_front, until

KEYS = ("shop:shop-secret:submit+read", "studio:studio-secret", "bare-secret", "mail:mail-secret:submit")
SETTINGS: dict[str, Any] = {"api_keys": KEYS, "admin_api_keys": ("ops:ops-secret",)}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with running_engine(tmp_path) as engine:
        yield engine


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


SHOP, STUDIO, BARE, MAIL, OPS = (
    bearer(name) for name in ("shop-secret", "studio-secret", "bare-secret", "mail-secret", "ops-secret")
)


def body(job_id: str, workflow: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"input": {"workflow_json": workflow or draw(), "request_id": job_id}}


async def made(front: RunningFront, job_id: str, headers: dict[str, str], **more: Any) -> httpx.Response:
    return await front.http.post("/generate/sync", json=body(job_id, **more), headers=headers)


async def test_another_keys_job_is_unknown(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        assert (await made(front, "order-1", SHOP)).status_code == 200
        unknown = (await front.http.get("/result/order-1-never", headers=STUDIO)).text
        for route in ("/result", "/stream", "/status"):
            assert (await front.http.get(f"{route}/order-1", headers=SHOP)).status_code == 200, route
            assert (await front.http.get(f"{route}/order-1", headers=OPS)).status_code == 200, route
            for other in (STUDIO, BARE):
                assert (await front.http.get(f"{route}/order-1", headers=other)).status_code == 404, route
        hidden = (await front.http.get("/result/order-1", headers=STUDIO)).text
        assert hidden == unknown.replace("order-1-never", "order-1")
        for other in (STUDIO, BARE):
            assert (await front.http.post("/cancel/order-1", headers=other)).status_code == 404
        assert (await front.http.post("/cancel/order-1", headers=SHOP)).status_code == 200


async def test_a_running_job_is_cancelled_by_its_key_or_the_operator_alone(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        for name, allowed in (("a", SHOP), ("b", OPS)):
            sent = await front.http.post("/generate", json=body(name, wait()), headers=SHOP)
            assert sent.status_code == 202
            assert (await front.http.post(f"/cancel/{name}", headers=STUDIO)).status_code == 404
            assert (await front.http.post(f"/cancel/{name}", headers=allowed)).json()["status"] == "cancelled"


async def test_one_request_id_of_two_keys_is_two_jobs(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        of_shop = await made(front, "order-1", SHOP, workflow=draw("shop"))
        of_studio = await made(front, "order-1", STUDIO, workflow=draw("studio"))
        assert (of_shop.status_code, of_studio.status_code, len(engine.runs)) == (200, 200, 2)
        assert of_shop.json()["id"] == of_studio.json()["id"] == "order-1"
        for headers, taken in ((SHOP, of_shop), (STUDIO, of_studio)):
            found = (await front.http.get("/result/order-1", headers=headers)).json()
            assert found["timings"] == taken.json()["timings"] and found["id"] == "order-1"
            streamed = await front.http.get("/stream/order-1", headers=headers)
            assert '"request_id": "order-1"' in streamed.text
            link = httpx.URL(found["output"][0]["url"])
            assert (await front.http.get(link.raw_path.decode())).status_code == 200
        again = (await made(front, "order-1", STUDIO, workflow=draw("studio"))).json()
        assert again["timings"] == of_studio.json()["timings"]
        assert len(engine.runs) == 2  # the last one was replayed
        assert (await made(front, "order-1", STUDIO, workflow=draw("other"))).status_code == 409


async def test_two_keys_with_one_request_id_at_once_get_a_job_each(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        answers = await asyncio.gather(*(made(front, "same", key) for key in (SHOP, STUDIO, BARE, OPS)))
        assert [answer.status_code for answer in answers] == [200] * 4
        assert [answer.json()["id"] for answer in answers] == ["same"] * 4
        assert len(engine.runs) == 4


async def test_the_queue_lists_ones_own_jobs_alone(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        for name, headers in (("a", SHOP), ("b", STUDIO), ("c", SHOP)):
            await front.http.post("/generate", json=body(name, wait()), headers=headers)

        async def listed(headers: dict[str, str]) -> list[str] | None:
            jobs = (await front.http.get("/queue-info", headers=headers)).json().get("jobs")
            return None if jobs is None else sorted(job["id"] for job in jobs)

        assert await listed(SHOP) == ["a", "c"]
        assert await listed(STUDIO) == ["b"]
        assert await listed(BARE) == []
        assert await listed(OPS) == ["a", "b", "c"]
        assert await listed(MAIL) is None
        assert await listed({}) is None
        for name in ("a", "b", "c"):
            await front.http.post(f"/cancel/{name}", headers=OPS)


async def test_runpods_form_has_the_callers_rights(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        done = await front.http.post("/runsync", json={"input": {"workflow": draw()}}, headers=SHOP)
        assert done.json()["status"] == "COMPLETED"
        job_id = done.json()["id"]
        assert (await front.http.get(f"/status/{job_id}", headers=SHOP)).status_code == 200
        assert (await front.http.get(f"/result/{job_id}", headers=SHOP)).status_code == 200
        for route in ("status", "result", "stream"):
            assert (await front.http.get(f"/{route}/{job_id}", headers=STUDIO)).status_code == 404


OPERATORS_ROUTES = [
    ("GET", "/webhooks"),
    ("POST", "/webhooks/redeliver"),
    ("POST", "/webhooks/any/redeliver"),
    ("POST", "/webhooks/test"),
    ("POST", "/benchmark"),
]


@pytest.mark.parametrize(("method", "route"), OPERATORS_ROUTES)
async def test_the_operators_routes_are_closed_to_customers(
    tmp_path: Path, engine: FakeEngine, method: str, route: str
) -> None:
    async with running_front(tmp_path, engine, waits_until_ready=False, **SETTINGS) as front:
        for headers in (SHOP, BARE, MAIL):
            refused = await front.http.request(method, route, json={}, headers=headers)
            assert refused.status_code == 403
            error = refused.json()["error"]
            assert (error["code"], error["scope"]) == ("insufficient_scope", "admin") and "admin" in error["message"]
            assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
        assert (await front.http.request(method, route, json={})).status_code == 401
        assert (await front.http.request(method, route, json={}, headers=OPS)).status_code not in (401, 403)


async def test_a_scope_that_is_missing_is_named(tmp_path: Path, engine: FakeEngine) -> None:
    keys = ("in:in-secret:submit", "out:out-secret:read")
    async with running_front(tmp_path, engine, api_keys=keys) as front:
        sent = await front.http.post("/generate", json=body("x"), headers=bearer("out-secret"))
        assert (sent.status_code, sent.json()["error"]["scope"]) == (403, "submit")
        assert (await front.http.post("/run", json=body("x"), headers=bearer("out-secret"))).status_code == 403
        assert (await front.http.post("/cancel/x", headers=bearer("out-secret"))).status_code == 403
        read = await front.http.get("/result/x", headers=bearer("in-secret"))
        assert (read.status_code, read.json()["error"]["scope"]) == (403, "read")
        assert (await front.http.post("/generate/sync", json=body("x"), headers=bearer("in-secret"))).status_code == 200


async def test_a_wrong_key_is_distinguished_from_a_missing_one(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, waits_until_ready=False, **SETTINGS) as front:
        missing = await front.http.get("/result/x")
        assert (missing.status_code, missing.headers["www-authenticate"]) == (401, 'Bearer realm="darkroom"')
        for given in ("Bearer shop", "bearer shop-secre", "Bearer shop:shop-secret", "Bearer sécret"):
            wrong = await front.http.get("/result/x", headers=[(b"authorization", given.encode())])
            assert wrong.status_code == 401 and wrong.json()["error"]["code"] != missing.json()["error"]["code"]
            assert wrong.headers["www-authenticate"].startswith('Bearer realm="darkroom", error="invalid_token"')
            assert "secre" not in wrong.text
        for no_key in ("Bearer", "Basic c2hvcA==", "shop-secret"):
            assert (await front.http.get("/result/x", headers={"Authorization": no_key})).headers[
                "www-authenticate"
            ] == 'Bearer realm="darkroom"'


async def test_an_open_worker_makes_nobody_its_operator(tmp_path: Path, engine: FakeEngine) -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.7"}
    async with running_front(tmp_path, engine) as front:
        assert (await made(front, "x", elsewhere)).status_code == 200
        assert (await front.http.get("/result/x", headers=elsewhere)).status_code == 200
        assert (await front.http.get("/webhooks", headers=elsewhere)).status_code == 401
        assert (await front.http.get("/webhooks")).status_code == 200
    async with running_front(tmp_path, engine, unsecured=True) as front:
        assert (await front.http.get("/webhooks", headers=elsewhere)).status_code == 200


async def test_metrics_are_closed_by_a_setting(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, waits_until_ready=False, **SETTINGS) as front:
        assert (await front.http.get("/metrics")).status_code == 200
    async with running_front(tmp_path, engine, waits_until_ready=False, metrics_open=False, **SETTINGS) as front:
        assert (await front.http.get("/metrics")).status_code == 401
        assert (await front.http.get("/metrics", headers=SHOP)).status_code == 403
        assert (await front.http.get("/metrics", headers=OPS)).status_code == 200


async def test_ownership_outlives_a_restart(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        await made(front, "order-1", SHOP, workflow=draw("shop"))
        await made(front, "order-1", STUDIO, workflow=draw("studio"))
    async with running_front(tmp_path, engine, **SETTINGS) as front:
        for headers in (SHOP, STUDIO):
            assert (await front.http.get("/result/order-1", headers=headers)).json()["id"] == "order-1"
        assert (await front.http.get("/result/order-1", headers=BARE)).status_code == 404


def rotate(path: Path, text: str) -> None:
    """Replace a file at once, with a time of its own."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
    os.utime(path, ns=(path.stat().st_mtime_ns + 1, path.stat().st_mtime_ns + 1))


async def test_a_keys_file_is_read_again_when_it_changes(tmp_path: Path, engine: FakeEngine) -> None:
    file = tmp_path / "keys.txt"
    digest = sha256(b"old-secret").hexdigest()
    file.write_text(f"# the shop's\nshop:sha256:{digest}:submit+read\n\nplain:plain-secret\n")
    async with running_front(tmp_path, engine, api_keys_file=file) as front:

        async def status(secret: str) -> int:
            return (await front.http.get("/result/order-1", headers=bearer(secret))).status_code

        assert (await made(front, "order-1", bearer("old-secret"))).status_code == 200
        assert (await status("plain-secret"), await status(digest), await status("other")) == (404, 401, 401)

        async def is_rotated() -> bool:
            return await status("new-secret") == 200 and await status("old-secret") == 401

        rotate(file, f"shop:sha256:{sha256(b'new-secret').hexdigest()}\n")
        await until(is_rotated)
        assert await status("plain-secret") == 401
        rotate(file, "shop:sha256:not-a-digest\n")  # the old keys hold on
        await asyncio.sleep(1.2)
        assert await status("new-secret") == 200
        rotate(file, "")

        async def is_empty() -> bool:
            return await status("new-secret") == 401

        await until(is_empty)
