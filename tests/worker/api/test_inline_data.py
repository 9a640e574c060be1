"""Images that a request carries in its workflow: looked at before it is taken, and kept as files, not in memory."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.worker.guard import bodies
from darkroom.worker.inputs.fetch import decode_data_uri
from tests.fakes import FakeEngine, draw, paint
from tests.worker.running_front import RunningFront, running_front

IMAGE = bytes(decode_data_uri(EXAMPLE_IMAGE))
LARGE = IMAGE + bytes(bodies.LARGE_BODY_BYTES)  # what stands behind a PNG's end is nobody's concern


def two_images() -> dict[str, Any]:
    in_line = base64.b64encode(LARGE).decode()
    return {"1": paint(image=f"data:image/png;base64,{in_line}")["1"], "2": paint(image=in_line)["1"]}


async def test_a_job_that_waits_holds_none_of_its_images_and_survives_a_restart_with_them(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_front(tmp_path, engine) as front:
        front.front.services.engines.pool.pause()
        body = {"input": {"workflow_json": two_images(), "request_id": "one"}}
        assert (await front.http.post("/generate", json=body)).status_code == 202
        assert len(str(front.front.store.jobs["one"].prompt)) < 1000
        stored = [path for path in (tmp_path / "state").glob("darkroom.db*") if b"AAAAAAAAAAAA" in path.read_bytes()]
        assert stored == []
        again = await front.http.post("/generate", json=body)
        assert again.status_code == 202 and again.json()["id"] == "one"
    async with running_front(tmp_path, engine) as front:
        assert (await front.until("one", "completed", "failed"))["status"] == "completed"
        (name,) = engine.uploaded  # the same content twice is one file
        assert (engine.folder / name).read_bytes() == LARGE


@pytest.mark.parametrize("broken", ["data:image/png;base64,%%%", "data:text/plain,hello", "A" * 65])
async def test_data_that_is_no_image_is_refused_before_there_is_a_job(front: RunningFront, broken: str) -> None:
    workflow = two_images() | {"3": paint(image=broken)["1"], "4": draw()["1"]}
    reply = await front.sync(workflow, request_id="one")
    assert reply.status_code == 422
    (problem,) = reply.json()["error"]["problems"]
    assert (problem["node_id"], problem["field"], problem["type"]) == ("3", "image", "input_broken")
    assert (await front.http.get("/result/one")).status_code == 404
    await front.front.services.files.inputs.forget_unused(2**40, 0)  # type: ignore[attr-defined]
    assert list((front.front.store.directory / "inputs").iterdir()) == []
