"""Whatever is stored for a caller counts for its quota, by each way to store something; what is removed frees it."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.worker.inputs.fetch import decode_data_uri
from darkroom.worker.jobs.checkpoints import JobCheckpoints, _key_of
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from tests.fakes import FakeEngine, draw, paint
from tests.worker.running_front import RunningFront, running_front

IMAGE = bytes(decode_data_uri(EXAMPLE_IMAGE))
ALLOWED_BYTES = 100_000
FILE_BYTES = 40_000
SHOP = {"Authorization": "Bearer shops-own-key"}
OTHER = {"Authorization": "Bearer another-key"}
SETTINGS: dict[str, Any] = {
    "api_keys": "shop:shops-own-key:submit+read,other:another-key:submit+read",
    "admin_api_keys": "operators-key",
    "caller_max_stored_bytes": ALLOWED_BYTES,
}


def file(number: int) -> bytes:
    """An image with something of its own behind its end."""
    return IMAGE + str(number).encode() + bytes(FILE_BYTES - len(IMAGE) - 1)


@contextlib.asynccontextmanager
async def limited(folder: Path) -> AsyncIterator[RunningFront]:
    (folder / "engine").mkdir(exist_ok=True)
    async with FakeEngine(folder / "engine") as engine, running_front(folder, engine, **SETTINGS) as front:
        yield front


Store = Callable[[RunningFront, int, dict[str, str]], Awaitable[httpx.Response]]


async def as_asset(front: RunningFront, number: int, key: dict[str, str]) -> httpx.Response:
    return await front.http.post("/api/v2/assets", files={"file": ("a.png", file(number))}, headers=key)


async def by_the_cloud_api(front: RunningFront, number: int, key: dict[str, str]) -> httpx.Response:
    return await front.http.post("/api/upload/image", files={"image": (f"{number}.png", file(number))}, headers=key)


async def with_a_job(front: RunningFront, number: int, key: dict[str, str]) -> httpx.Response:
    body = json.dumps({"input": {"workflow_json": paint(image="photo"), "request_id": f"job{number}"}})
    sent: dict[str, tuple[str, bytes | str]] = {"photo": ("p.png", file(number)), "input": ("body.json", body)}
    return await front.http.post("/generate", files=sent, headers=key)


async def inside_a_workflow(front: RunningFront, number: int, key: dict[str, str]) -> httpx.Response:
    image = f"data:image/png;base64,{base64.b64encode(file(number)).decode()}"
    body = {"input": {"workflow_json": paint(image=image), "request_id": f"job{number}"}}
    return await front.http.post("/generate", json=body, headers=key)


async def as_a_long_prompt(front: RunningFront, number: int, key: dict[str, str]) -> httpx.Response:
    body = {"input": {"workflow_json": draw("a" * (FILE_BYTES + 64 * 1024)), "request_id": f"job{number}"}}
    return await front.http.post("/generate", json=body, headers=key)


async def as_extra_data(front: RunningFront, number: int, key: dict[str, str]) -> httpx.Response:
    extra = {"extra_pnginfo": {"x": "a" * (FILE_BYTES + 64 * 1024)}}
    body = {"input": {"workflow_json": draw(), "request_id": f"job{number}", "extra_data": extra}}
    return await front.http.post("/generate", json=body, headers=key)


WAYS: dict[str, Store] = {
    "assets": as_asset,
    "the cloud API": by_the_cloud_api,
    "files beside a job": with_a_job,
    "files inside a workflow": inside_a_workflow,
    "long prompts": as_a_long_prompt,
    "extra data": as_extra_data,
}


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_stored_counts_and_the_refusal_says_how_much(tmp_path: Path, way: str) -> None:
    async with limited(tmp_path) as front:
        front.front.services.engines.pool.pause()  # jobs wait
        for number in range(2):
            stored = await WAYS[way](front, number, SHOP)
            assert stored.status_code in (200, 201, 202), stored.text
        refused = await WAYS[way](front, 2, SHOP)
        assert refused.status_code == 429, refused.text
        assert "stored_bytes" in refused.text and str(ALLOWED_BYTES) in refused.text
        assert (await WAYS[way](front, 3, OTHER)).status_code in (200, 201, 202)
        used = front.front.services.files.caller_quota.used_bytes("key:shop")
        assert 2 * FILE_BYTES <= used <= ALLOWED_BYTES
    async with limited(tmp_path) as front:  # also over a restart
        front.front.services.engines.pool.pause()
        if not way.startswith("files"):  # whose jobs may have run meanwhile
            assert (await WAYS[way](front, 4, SHOP)).status_code == 429


async def test_all_ways_are_counted_together(tmp_path: Path) -> None:
    async with limited(tmp_path) as front:
        front.front.services.engines.pool.pause()
        assert (await as_asset(front, 0, SHOP)).status_code == 201
        assert (await with_a_job(front, 1, SHOP)).status_code == 202
        for number, store in enumerate(WAYS.values(), 2):
            assert (await store(front, number, SHOP)).status_code == 429


async def test_what_is_removed_frees_the_quota(tmp_path: Path) -> None:
    async with limited(tmp_path) as front:
        front.front.services.engines.pool.pause()
        asset = (await as_asset(front, 0, SHOP)).json()
        await with_a_job(front, 1, SHOP)
        assert (await as_asset(front, 2, SHOP)).status_code == 429
        assert (await as_asset(front, 0, SHOP)).status_code == 200  # it is there
        assert (await front.http.delete(f"/api/v2/assets/{asset['id']}", headers=SHOP)).status_code < 300
        assert (await as_asset(front, 2, SHOP)).status_code == 201
        await front.http.post("/cancel/job1", headers=SHOP)
        await front.until("job1", "cancelled", headers=SHOP)
        assert (await as_asset(front, 3, SHOP)).status_code == 201
        assert front.front.services.files.caller_quota.used_bytes("key:shop") == 2 * FILE_BYTES


async def test_a_long_prompt_counts_until_its_job_is_deleted(tmp_path: Path) -> None:
    async with limited(tmp_path) as front:
        assert (await as_a_long_prompt(front, 0, SHOP)).status_code == 202
        await front.until("job0", "completed", headers=SHOP)
        assert front.front.services.files.caller_quota.used_bytes("key:shop") >= FILE_BYTES
        assert (await as_a_long_prompt(front, 2, SHOP)).status_code == 429
        assert (await front.http.delete("/jobs/job0", headers=SHOP)).status_code < 300
        assert (await as_a_long_prompt(front, 3, SHOP)).status_code == 202


def test_checkpoints_of_a_job_are_measured(tmp_path: Path) -> None:
    job = Job(id="one", number=1, body_hash="x", request=JobRequest(), prompt={}, times=JobTimes(0))
    checkpoints = JobCheckpoints(tmp_path, 1.0)
    assert checkpoints.bytes_of(job) == 0
    folder = tmp_path / _key_of(job) / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "00000001.safetensors").write_bytes(bytes(1000))
    assert checkpoints.bytes_of(job) == 1000
