"""Files of an ended job are uploaded again by POST /jobs/{id}/deliver, without running anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fakes import FakeEngine, draw
from tests.served import served
from tests.worker.running_front import RunningFront, running_front


class Store:
    """Takes PUT while it is open; keeps what came."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.broken: set[str] = set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        name = request.match_info["key"]
        if name.startswith(tuple(self.broken)):
            return web.Response(status=503)
        self.files[name] = await request.read()
        return web.Response()

    def put(self, secret: str = "planted-first", **fields: Any) -> dict[str, Any]:
        return {"put": {"url": f"{self.url}/{{key}}?sig={secret}", "key_template": "{index}_{filename}", **fields}}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    kept, app = Store(), web.Application()
    app.router.add_put("/{key:.*}", kept.take)
    async with served(app) as url:
        kept.url = url
        yield kept


@pytest.fixture
async def private_front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path, engine, allowed_private_hosts="127.0.0.1") as front:
        yield front


def two() -> dict[str, Any]:
    return {**draw("first"), "2": {**draw("second")["1"]}}


async def test_what_failed_is_delivered_again_and_nothing_else(private_front: RunningFront, store: Store) -> None:
    front = private_front
    store.broken = {"1_"}
    result = (await front.sync(two(), request_id="again", **store.put())).json()
    assert result["status"] == "completed"
    assert ["upload_error" in output for output in result["output"]] == [False, True]
    first = dict(store.files)
    assert (await front.sync(two(), request_id="again", **store.put())).json()["output"][1]["upload_error"]

    refused = await front.http.post("/jobs/again/deliver")
    assert (refused.status_code, refused.json()["error"]["problems"][0]["field"]) == (422, "body")
    still = await front.http.post("/jobs/again/deliver", json=store.put())
    assert still.status_code == 200 and "status 503" in still.json()["output"][1]["upload_error"]

    store.broken = set()
    store.files.clear()
    done = (await front.http.post("/jobs/again/deliver", json=store.put("planted-second"))).json()
    assert [("upload_error" in output, output["url"].startswith(store.url)) for output in done["output"]] == [
        (False, True),
        (False, True),
    ]
    assert len(store.files) == 1 and not store.files.keys() & first.keys()  # the key is the one it had
    assert (await front.http.get("/result/again")).json()["output"] == done["output"]
    assert "planted" not in str(done)
    assert len(front.engine.runs) == 1


async def test_files_of_a_job_without_a_store_go_to_one_later(private_front: RunningFront, store: Store) -> None:
    front, store.broken = private_front, set()
    await front.sync(draw(), request_id="later")
    done = (await front.http.post("/jobs/later/deliver", json=store.put(s3=None))).json()
    assert done["output"][0]["url"].startswith(store.url) and len(store.files) == 1


async def test_wrong_deliveries_are_refused_with_their_field(private_front: RunningFront, store: Store) -> None:
    front = private_front
    assert (await front.http.post("/jobs/nobody/deliver", json=store.put())).status_code == 404
    await front.sync(draw(), request_id="known")
    keys = {"access_key_id": "a", "secret_access_key": "b"}
    for body in (
        {"s3": {**keys, "bucket_name": "a/b"}},
        {"put": {"url": "http://10.0.0.1/{key}"}},
        {"hf": {"repo": "a"}},
        {**store.put(), "s3": {**keys, "bucket_name": "a"}},
        {"nothing": 1},
    ):
        assert (await front.http.post("/jobs/known/deliver", json=body)).status_code == 422, body


async def test_a_job_that_runs_is_not_delivered(private_front: RunningFront, store: Store) -> None:
    front = private_front
    slow = {"1": {"class_type": "Wait", "inputs": {"seconds": 600}}}
    await front.http.post("/generate", json={"input": {"workflow_json": slow, "request_id": "slow"}})
    reply = await front.http.post("/jobs/slow/deliver", json=store.put())
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "job_not_ended")
    await front.http.post("/cancel/slow")
