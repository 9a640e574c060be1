"""Jobs that name model files which are not there: fetched before they run, once, with progress; or refused by name."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import draw
from tests.worker.models.engine_with_models import EngineWithModels, drawing
from tests.worker.models.model_server import ModelServer, checkpoint, model_server
from tests.worker.running_front import RunningFront, running_front, until

NAMES = ("first.safetensors", "second.safetensors")
MANIFEST = """
[first]
kind = "checkpoints"
sources = ["{url}/first.safetensors"]

[second]
kind = "checkpoints"
sources = ["{url}/second.safetensors"]
sha256 = "{sha256}"
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        running.files = {f"/{name}": checkpoint(100_000) for name in NAMES}
        yield running


@asynccontextmanager
async def front_with(
    tmp_path: Path, server: ModelServer, mode: str = "manifest", **changes: Any
) -> AsyncIterator[RunningFront]:
    base = tmp_path / "base"
    base.mkdir(exist_ok=True)
    text = MANIFEST.format(url=server.url, sha256=changes.pop("sha256", None) or server.sha256("/second.safetensors"))
    (base / "models.toml").write_text(text)
    outputs = tmp_path / "outputs"
    outputs.mkdir(exist_ok=True)
    async with (
        EngineWithModels(outputs, base / "models") as engine,
        running_front(tmp_path, engine, base_directory=base, fetch_missing=mode, **changes) as running,
    ):
        yield running


async def test_ten_jobs_that_need_two_models_fetch_each_once(server: ModelServer, tmp_path: Path) -> None:
    async with front_with(tmp_path, server) as front:
        answers = await asyncio.gather(*(front.sync(drawing(*NAMES)) for _ in range(10)))
        assert [answer.status_code for answer in answers] == [200] * 10
        assert sorted(path for path, _ in server.asked) == [f"/{name}" for name in NAMES]
        assert (await front.sync(drawing(*NAMES))).status_code == 200
    assert len(server.asked) == 2


async def test_progress_is_said_and_other_jobs_go_on(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    async with front_with(tmp_path, server) as front:
        accepted = (await front.http.post("/generate", json={"input": {"workflow_json": drawing(NAMES[0])}})).json()
        await front.until_message(accepted["id"], f"fetching {NAMES[0]} 0 %")
        assert (await front.sync(draw())).status_code == 200
        server.hold.set()
        assert (await front.until(accepted["id"], "completed"))["status"] == "completed"


async def test_the_stream_has_the_progress(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    body = {"input": {"workflow_json": drawing(NAMES[0])}}
    messages = []
    async with (
        front_with(tmp_path, server) as front,
        front.http.stream("POST", "/generate/stream", json=body) as events,
    ):
        async for line in events.aiter_lines():
            if line.startswith("data: "):
                data = json.loads(line[6:])
                messages.append(str(data.get("message")))
                if messages[-1].startswith("fetching"):
                    server.hold.set()
                if data["status"] == "final_result":
                    assert data["result"]["status"] == "completed"
    assert any(message.startswith(f"fetching {NAMES[0]}") for message in messages)


async def test_a_wrong_file_fails_its_job_by_name_and_no_other(server: ModelServer, tmp_path: Path) -> None:
    async with front_with(tmp_path, server, sha256="1" * 64) as front:
        wrong, right = await asyncio.gather(front.sync(drawing(NAMES[1])), front.sync(drawing(NAMES[0])))
        assert (wrong.status_code, right.status_code) == (422, 200)
        error = wrong.json()["error"]
        assert error["code"] == "model_unavailable" and error["reason"] == "model_broken"
        assert (error["model"], error["node_id"], error["field"]) == (NAMES[1], "10", "ckpt_name")
        assert "wrong content" in error["message"]
    assert not (tmp_path / "base" / "models" / "checkpoints" / NAMES[1]).exists()


async def test_a_source_that_is_gone_is_named(server: ModelServer, tmp_path: Path) -> None:
    del server.files[f"/{NAMES[0]}"]
    async with front_with(tmp_path, server) as front:
        answer = await front.sync(drawing(NAMES[0]))
    assert answer.status_code == 422 and answer.json()["error"]["reason"] == "model_not_at_source"


async def test_a_full_disk_is_named(server: ModelServer, tmp_path: Path) -> None:
    async with front_with(tmp_path, server, min_free_disk_bytes=0) as front:
        downloader = front.front.services.files.models.library.limits
        object.__setattr__(downloader, "min_free_bytes", 1 << 60)
        answer = await front.sync(drawing(NAMES[0]))
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "disk_low"


async def test_without_the_setting_a_missing_model_is_refused(server: ModelServer, tmp_path: Path) -> None:
    async with front_with(tmp_path, server, "off") as front:
        answer = await front.sync(drawing(NAMES[0]))
        assert answer.status_code == 422 and answer.json()["error"]["problems"][0]["type"] == "value_not_in_list"
    async with front_with(tmp_path, server) as front:
        assert (await front.sync(drawing("unknown.safetensors"))).status_code == 422
        idle = {"2": drawing(NAMES[0])["10"], **drawing()}
        await front.sync(idle)  # nothing uses its loader, so it does not run
    assert server.heads == []


def page_with_address(url: str, name: str) -> dict[str, Any]:
    models = [{"name": name, "url": url, "directory": "checkpoints"}]
    node = {"id": 10, "type": "CheckpointLoaderSimple", "widgets_values": [name], "properties": {"models": models}}
    return {"extra_pnginfo": {"workflow": {"nodes": [node], "links": []}}}


async def test_a_job_brings_a_model_by_its_own_address_only_where_that_is_allowed(
    server: ModelServer, tmp_path: Path
) -> None:
    name = "own.safetensors"
    server.files[f"/{name}"] = checkpoint()
    fields = {"extra_data": page_with_address(f"{server.url}/{name}", name)}
    async with front_with(tmp_path, server) as front:
        assert (await front.sync(drawing(name), **fields)).status_code == 422
    async with front_with(tmp_path, server, "any") as front:
        answer = await front.sync(drawing(name), **fields)
        assert answer.status_code == 422 and answer.json()["error"]["reason"] == "model_access_refused"
    async with front_with(tmp_path, server, "any", allowed_private_hosts="127.0.0.1") as front:
        assert (await front.sync(drawing(name), **fields)).status_code == 200
        unsafe = {"extra_data": page_with_address(f"{server.url}/x.ckpt", "x.ckpt")}
        assert (await front.sync(drawing("x.ckpt"), **unsafe)).status_code == 422
    async with front_with(
        tmp_path, server, "any", allowed_private_hosts="127.0.0.1", constants={"models": {"max_request_bytes": 10}}
    ) as front:
        server.files["/large.safetensors"] = checkpoint()
        large = {"extra_data": page_with_address(f"{server.url}/large.safetensors", "large.safetensors")}
        answer = await front.sync(drawing("large.safetensors"), **large)
        assert answer.status_code == 422 and "too large" in answer.json()["error"]["message"]


async def test_a_cancelled_job_leaves_the_download_to_the_others(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    body = {"input": {"workflow_json": drawing(NAMES[0])}}
    async with front_with(tmp_path, server) as front:
        first, second = [(await front.http.post("/generate", json=body)).json()["id"] for _ in range(2)]
        for job_id in (first, second):
            await front.until_message(job_id, "fetching")
        await asyncio.sleep(0.5)  # a job says so just before it joins the download
        await front.http.post(f"/cancel/{first}")
        await front.until(first, "cancelled")
        server.hold.set()
        await front.until(second, "completed")
    assert len(server.asked) == 1


async def test_a_job_that_was_fetching_goes_on_after_a_restart(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    async with front_with(tmp_path, server) as front:
        body = {"input": {"workflow_json": drawing(NAMES[0])}}
        job_id = (await front.http.post("/generate", json=body)).json()["id"]
        await front.until_message(job_id, "fetching")
    server.hold.set()
    async with front_with(tmp_path, server) as front:
        await front.until(job_id, "completed")


async def test_downloads_in_flight_are_listed(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    async with front_with(tmp_path, server) as front:
        task = asyncio.create_task(front.sync(drawing(NAMES[0])))

        async def is_fetching() -> bool:
            return bool(front.front.services.files.models.in_flight())

        await until(is_fetching)
        assert front.front.services.files.models.in_flight()[0].name == NAMES[0]
        server.hold.set()
        await task
        assert front.front.services.files.models.in_flight() == []


async def test_files_above_the_limit_make_room_and_are_fetched_again(server: ModelServer, tmp_path: Path) -> None:
    models = tmp_path / "base" / "models" / "checkpoints"
    limit = len(server.files[f"/{NAMES[0]}"]) + 1000
    server.files["/third.safetensors"] = checkpoint(100_000)
    changes = {"model_disk_bytes": limit, "allowed_private_hosts": "127.0.0.1"}
    async with front_with(tmp_path, server, "any", **changes) as front:
        for name in ("third.safetensors", "fourth.safetensors", "third.safetensors"):
            server.files[f"/{name}"] = checkpoint(100_000)
            fields = {"extra_data": page_with_address(f"{server.url}/{name}", name)}
            assert (await front.sync(drawing(name), **fields)).status_code == 200
            assert [path.name for path in models.glob("*.safetensors")] == [name]
        text = (await front.http.get("/metrics")).text
    assert "darkroom_model_files_evicted_total 2.0" in text
    assert 'darkroom_model_file_lookups_total{level="network"} 3.0' in text
    assert 'darkroom_model_file_fetches_total{outcome="fetched"} 3.0' in text


async def test_a_shared_volume_is_read_before_the_network(server: ModelServer, tmp_path: Path) -> None:
    shared = tmp_path / "volume" / "checkpoints"
    shared.mkdir(parents=True)
    (shared / NAMES[0]).write_bytes(checkpoint(5000))
    (shared / "only-there.safetensors").write_bytes(checkpoint(100))
    async with front_with(tmp_path, server, model_shared_directories=str(tmp_path / "volume")) as front:
        hints = (await front.http.get("/models/hint", params={"name": [*NAMES, "only-there.safetensors", "x"]})).json()
        assert hints["asked"][NAMES[0]] == "shared" and hints["asked"][NAMES[1]] == "network"
        assert (await front.sync(drawing(NAMES[0], "only-there.safetensors"))).status_code == 200
        text = (await front.http.get("/metrics")).text
        hints = (await front.http.get("/models/hint", params={"name": [NAMES[0], "x"]})).json()
    assert server.heads == [] and 'darkroom_model_file_lookups_total{level="shared"} 2.0' in text
    assert hints["asked"] == {NAMES[0]: "disk", "x": "none"}
    assert [file["place"] for file in hints["files"]] == [
        f"checkpoints/{name}" for name in (NAMES[0], "only-there.safetensors")
    ]
    assert (shared / NAMES[0]).is_file() and not list(shared.glob(".*"))
