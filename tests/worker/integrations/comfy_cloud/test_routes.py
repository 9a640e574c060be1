"""Comfy Cloud's first API over HTTP against a whole front, by hand and with the official `comfy-cli`, with keys."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine, draw, fail, paint, wait
from tests.worker.integrations.comfy_v2.test_jobs import image
from tests.worker.running_front import RunningFront, running_front, until

KEY = "shop-secret-of-the-cloud-test"
OTHER = "studio-secret-of-the-cloud-test"


@pytest.fixture
async def keyed(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    keys = (f"shop:{KEY}", f"studio:{OTHER}")
    async with running_front(tmp_path, engine, api_keys=keys, trust_loopback=False) as running:
        yield running


async def cloud(front: RunningFront, method: str, path: str, key: str = KEY, **more: Any) -> httpx.Response:
    return await front.http.request(method, f"/api/{path}", headers={"X-API-Key": key}, **more)


async def ended(front: RunningFront, job_id: str) -> dict[str, Any]:
    """Return the record of a job once there is one."""
    record: dict[str, Any] = {}

    async def is_there() -> bool:
        record.update((await cloud(front, "GET", f"history_v2/{job_id}")).json().get(job_id, {}))
        return bool(record)

    await until(is_there)
    return record


async def upload(front: RunningFront, content: bytes, name: str = "photo.png", **fields: str) -> str:
    reply = await cloud(front, "POST", "upload/image", files={"image": (name, content, "image/png")}, data=fields)
    assert reply.status_code == 200, reply.text
    stored: str = reply.json()["name"]
    return stored


async def test_a_prompt_runs_and_its_image_is_viewed_with_the_callers_key(keyed: RunningFront) -> None:
    sent = (await cloud(keyed, "POST", "prompt", json={"prompt": draw("x"), "client_id": "a"})).json()
    record = await ended(keyed, sent["prompt_id"])
    assert record["status"] == {"status_str": "success", "completed": True, "messages": []}
    (file,) = record["outputs"]["1"]["images"]
    found = await cloud(keyed, "GET", "view", params=file, follow_redirects=True)
    assert found.content == b"x" * 8
    assert (await cloud(keyed, "GET", "view", OTHER, params=file)).status_code == 404
    job = (await cloud(keyed, "GET", f"jobs/{sent['prompt_id']}")).json()
    assert (job["status"], job["outputs_count"]) == ("completed", 1) and job["outputs"] == record["outputs"]
    listed = (await cloud(keyed, "GET", "jobs")).json()["jobs"]
    assert [entry["id"] for entry in listed] == [sent["prompt_id"]]
    assert (await cloud(keyed, "GET", "jobs", OTHER)).json()["jobs"] == []
    assert (await cloud(keyed, "GET", f"jobs/{sent['prompt_id']}", OTHER)).status_code == 404


async def test_uploads_are_named_by_their_owners_prompts_alone(keyed: RunningFront) -> None:
    assert await upload(keyed, image("red")) == "photo.png" == await upload(keyed, image("red"))
    assert await upload(keyed, image("blue")) == "photo (1).png"
    assert await upload(keyed, image("green"), overwrite="true") == "photo.png"
    shown = await cloud(keyed, "GET", "view", params={"filename": "photo.png", "type": "input"})
    assert shown.content == image("green")
    sent = await cloud(keyed, "POST", "prompt", json={"prompt": paint(image="photo.png")})
    record = await ended(keyed, sent.json()["prompt_id"])
    assert record["status"]["completed"], record
    others = await cloud(keyed, "POST", "prompt", OTHER, json={"prompt": paint(image="photo.png")})
    assert others.status_code == 400 and "1" in others.json()["node_errors"], others.text


async def test_failures_and_cancellations_are_told_in_the_formats_words(keyed: RunningFront) -> None:
    failed = (await cloud(keyed, "POST", "prompt", json={"prompt": fail()})).json()["prompt_id"]
    record = await ended(keyed, failed)
    assert record["status"]["status_str"] == "error" and record["error_message"]
    job = (await cloud(keyed, "GET", f"job/{failed}/status")).json()
    assert job["status"] == "failed" and job["execution_error"]["node_id"] == "1"
    running = (await cloud(keyed, "POST", "prompt", json={"prompt": wait(), "prompt_id": "mine-1"})).json()["prompt_id"]
    assert running == "mine-1"

    async def is_running() -> bool:
        return bool((await cloud(keyed, "GET", "jobs/mine-1")).json()["status"] == "in_progress")

    await until(is_running)
    assert (await cloud(keyed, "POST", "jobs/mine-1/cancel")).json()["status"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"prompt": {}}, 400, "request_rejected"),
        ({"prompt": {"1": {"class_type": "Nothing", "inputs": {}}}}, 400, "prompt_outputs_failed_validation"),
    ],
)
async def test_wrong_prompts_are_refused_as_comfyui_refuses(
    keyed: RunningFront, body: dict[str, Any], status: int, kind: str
) -> None:
    reply = await cloud(keyed, "POST", "prompt", json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind), reply.text


@pytest.mark.parametrize("path", ["jobs", "object_info", "jobs/a", "history_v2/a", "view?filename=a"])
async def test_a_key_is_needed(keyed: RunningFront, path: str) -> None:
    for key, kind in (("", "unauthorized"), ("wrong", "invalid_key")):
        reply = await cloud(keyed, "GET", path, key)
        assert (reply.status_code, reply.json()["error"]["type"]) == (401, kind), reply.text


async def test_node_classes_list_the_callers_own_files(keyed: RunningFront) -> None:
    await upload(keyed, image())
    known = keyed.front.services.engines.pool
    engine = await known.any_up_within(60.0)
    found = (await cloud(keyed, "GET", "object_info")).json()
    assert found.keys() == (await engine.known_object_info()).keys()


async def test_comfy_cli_runs_lists_and_downloads_with_a_key(keyed: RunningFront, tmp_path: Path) -> None:
    pytest.importorskip("comfy_cli", reason="comfy-cli is not installed")
    home, workflow = tmp_path / "home", tmp_path / "workflow.json"
    home.mkdir()
    workflow.write_text(json.dumps(draw("x")))
    own = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "DO_NOT_TRACK": "1"}
    target = {"COMFY_CLOUD_BASE_URL": keyed.url, "COMFY_CLOUD_API_KEY": KEY}

    async def comfy(*words: str) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "comfy_cli", "--skip-prompt", "--json", "--where", "cloud", *words),
            env={**os.environ, **own, **target},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
        assert process.returncode == 0, (stdout + stderr).decode()
        data: dict[str, Any] = json.loads(stdout.splitlines()[-1])["data"]
        return data

    run = await comfy("run", "--workflow", str(workflow), "--wait")
    assert run["status"] == "completed" and len(run["outputs"]) == 1
    await comfy("download", run["prompt_id"], "--out-dir", str(tmp_path / "got"))
    (file,) = (tmp_path / "got").iterdir()
    assert file.read_bytes() == b"x" * 8
