"""Files beside the JSON where the engine is somebody else's, and where not everybody may send any."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from modifiers.example_picture import EXAMPLE_PICTURE
from tests.fakes import FakeEngine, paint
from tests.worker.running_front import running_front
from worker.app import create_app
from worker.inputs.fetch import decode_data_uri

PICTURE = bytes(decode_data_uri(EXAMPLE_PICTURE))


def parts(workflow: dict[str, object]) -> list[tuple[str, tuple[str, bytes | str]]]:
    body = json.dumps({"input": {"workflow_json": workflow}})
    return [("photo", ("p.png", PICTURE)), ("input", ("body.json", body))]


async def test_a_stranger_is_refused_before_his_file_is_written(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="hush") as front:
        outside = httpx.ASGITransport(create_app(front.front.services), client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=outside, base_url="http://worker") as stranger:
            refused = await stranger.post("/generate/sync", files=parts(paint(image="photo")))
            assert refused.status_code == 401
            assert not list((tmp_path / "state").rglob("*.png")) + list((tmp_path / "state").rglob(".partial-*"))
            key = {"Authorization": "Bearer hush"}
            accepted = await stranger.post("/generate/sync", files=parts(paint(image="photo")), headers=key)
            assert accepted.status_code == 200, accepted.text
            (name,) = engine.uploaded  # somebody else's engine gets the file by its own way
            assert (engine.folder / name).read_bytes() == PICTURE


async def test_a_body_over_the_limit_is_413_and_leaves_nothing(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, max_request_bytes=len(PICTURE) + 100) as front:
        response = await front.http.post("/generate/sync", files=parts(paint(image="photo")))
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        assert not list((tmp_path / "state").rglob(".partial-*"))
