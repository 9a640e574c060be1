"""GET /models/known and POST /models/fetch, for operators."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine
from tests.worker.api.test_openapi import assert_as_declared
from tests.worker.models.model_server import ModelServer, checkpoint, model_server
from tests.worker.running_front import RunningFront, running_front, until

MANIFEST = """
[mine]
kind = "loras"
sources = ["{url}/mine.safetensors"]
licence = "MIT"
size_bytes = {size}

[lost]
kind = "vae"
sources = ["{url}/lost.safetensors"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    with model_server() as running:
        running.files = {"/mine.safetensors": checkpoint(300_000)}
        size = len(running.files["/mine.safetensors"])
        (tmp_path / "models.toml").write_text(MANIFEST.format(url=running.url, size=size))
        yield running


async def known(front: RunningFront, name: str) -> dict[str, Any]:
    models = (await front.http.get("/models/known")).json()["models"]
    return next(model for model in models if model["name"] == name)


async def test_an_operator_installs_a_known_model_and_sees_it_come(
    tmp_path: Path, engine: FakeEngine, server: ModelServer
) -> None:
    server.hold = threading.Event()
    async with running_front(tmp_path, engine, base_directory=tmp_path) as front:
        document = (await front.http.get("/openapi.json")).json()
        assert_as_declared(await front.http.get("/models/known"), "get", "/models/known", document)
        before = await known(front, "mine")
        assert (before["group"], before["num_here"], before["percent"], before["fits"]) == (
            "LoRAs",
            0,
            None,
            "as its model",
        )
        begun = await front.http.post("/models/fetch", json={"name": "mine"})
        assert_as_declared(begun, "post", "/models/fetch", document)
        assert (begun.status_code, begun.json()["files"]) == (202, ["loras/mine.safetensors"])
        assert (await known(front, "mine"))["percent"] is not None
        assert (await front.http.post("/models/fetch", json={"name": "mine"})).status_code == 202
        server.hold.set()

        async def is_here() -> bool:
            return bool((await known(front, "mine"))["num_here"])

        await until(is_here)
        assert (await known(front, "mine"))["used_at"] is not None
        assert (await front.http.post("/models/fetch", json={"name": "mine"})).json()["files"] == []
    assert [path for path, _ in server.asked] == ["/mine.safetensors"]


async def test_a_download_that_fails_says_why_and_others_are_refused(
    tmp_path: Path, engine: FakeEngine, server: ModelServer
) -> None:
    async with running_front(tmp_path, engine, base_directory=tmp_path) as front:
        assert (await front.http.post("/models/fetch", json={"name": "lost"})).status_code == 202

        async def has_failed() -> bool:
            return bool((await known(front, "lost"))["problem"])

        await until(has_failed)
        assert "lost.safetensors: there is no such file" in (await known(front, "lost"))["problem"]
        for wrong in ({"name": "sdx"}, {"name": ""}, {}, {"name": "mine", "url": "http://x"}):
            assert (await front.http.post("/models/fetch", json=wrong)).status_code == 422
        refused = (await front.http.post("/models/fetch", json={"name": "minee"})).json()
        assert "did you mean mine" in refused["error"]["problems"][0]["message"]


async def test_models_packs_and_keys_are_for_operators(tmp_path: Path, engine: FakeEngine) -> None:
    keys = "shop:abcdef:submit+read,ops:ghijkl:admin"
    async with running_front(tmp_path, engine, api_keys=keys) as front:
        shop, ops = ({"Authorization": f"Bearer {secret}"} for secret in ("abcdef", "ghijkl"))
        for path in ("/models/known", "/packs", "/keys"):
            statuses = [(await front.http.get(path, headers=headers)).status_code for headers in ({}, shop, ops)]
            assert statuses == [401, 403, 200]
        assert (await front.http.post("/models/fetch", json={"name": "sd15"}, headers=shop)).status_code == 403
