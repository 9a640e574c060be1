"""Outputs by plain PUT, to a real HTTP server; neither the address's secret nor the headers' stay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fakes import FakeEngine, draw
from tests.served import served
from tests.worker.running_front import RunningFront, running_front


class Store:
    """Contents that were put, by path; one whose name is refused answers 403."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[dict[str, str], bytes]] = {}
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        if request.query.get("sig") != "planted-signature":
            return web.Response(status=403)
        self.files[request.path] = (
            {name.lower(): value for name, value in request.headers.items()},
            await request.read(),
        )
        return web.Response(status=201)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = Store()
    app = web.Application()
    app.router.add_put("/{path:.*}", made.take)
    async with served(app) as url:
        made.url = url
        yield made


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as running:
        yield running


def target(store: Store, signature: str = "planted-signature", **more: Any) -> dict[str, Any]:
    headers = {"x-ms-blob-type": "BlockBlob", "X-Token": "planted-token"}
    return {"url": f"{store.url}/pictures/{{key}}?sig={signature}", "headers": headers, **more}


async def test_files_are_put_and_linked_and_the_secrets_are_gone(
    front: RunningFront, store: Store, tmp_path: Path
) -> None:
    response = await front.sync(
        draw("x"), put=target(store, key_template="{request_id}/{filename}"), request_id="job-1"
    )
    (output,) = response.json()["output"]
    path = f"/pictures/job-1/{output['filename']}"
    headers, content = store.files[path]
    assert content == b"x" * 8 and headers["x-ms-blob-type"] == "BlockBlob" and headers["content-length"] == "8"
    assert output["url"] == f"{store.url}{path}"
    public = await front.sync(draw("y"), put=target(store, public_url="https://cdn.example.com/{key}"))
    assert public.json()["output"][0]["url"].startswith("https://cdn.example.com/")
    await front.front.services.jobs.store.forget_finished_before(0)  # empties the write-ahead log
    for file in (tmp_path / "state").glob("darkroom.db*"):
        assert b"planted" not in file.read_bytes(), file


async def test_a_refused_upload_is_reported_without_the_secret_and_the_file_stays(
    front: RunningFront, store: Store
) -> None:
    response = await front.sync(draw("x"), put=target(store, "wrong-signature"))
    (output,) = response.json()["output"]
    assert response.status_code == 200 and "status 403" in output["upload_error"]
    assert "wrong-signature" not in json.dumps(response.json())
    assert (await front.http.get(output["url"])).content == b"x" * 8


@pytest.mark.parametrize(
    ("put", "field"),
    [
        ({"url": "https://example.com/no-key"}, "input.put.url"),
        ({"url": "http://10.0.0.1/{key}"}, "input.put.url"),
        ({"url": "ftp://example.com/{key}"}, "input.put.url"),
        ({"url": "https://example.com/{key}", "public_url": "javascript://a/{key}"}, "input.put.public_url"),
        ({"url": "https://example.com/{key}", "public_url": "/{key}"}, "input.put.public_url"),
        ({"url": "https://example.com/{key}", "headers": {"Host": "other"}}, "input.put.headers"),
        ({"url": "https://example.com/{key}", "headers": {"X-A": "a\r\nb"}}, "input.put.headers"),
        ({"url": "https://example.com/{key}", "key_template": "fixed"}, "input.put.key_template"),
    ],
)
async def test_wrong_settings_are_refused(front: RunningFront, put: dict[str, Any], field: str) -> None:
    response = await front.sync(draw(), put=put)
    assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, field), response.text
