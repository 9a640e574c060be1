"""The Comfy API v2 with its official SDK, over HTTP, against a whole front."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from comfy_sdk import AsyncComfy, ComfyError, JobFailed, NotFound, OutputReady, Preview, Progress, StatusChange
from PIL import Image

from tests.fakes import draw, fail, paint, steps, wait
from tests.worker.running_front import RunningFront, until


@pytest.fixture
async def comfy(front: RunningFront, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncComfy]:
    monkeypatch.setenv("COMFY_BASE_URL", front.url)
    async with AsyncComfy() as client:
        yield client


def image(colour: str = "red") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(content, "PNG")
    return content.getvalue()


async def test_a_workflow_runs_with_an_uploaded_image(comfy: AsyncComfy, front: RunningFront) -> None:
    workflow = comfy.workflows.from_json(paint())
    asset = comfy.assets.from_bytes(image(), filename="photo.png")
    workflow.set_input("1", "image", asset)
    job = await comfy.run(workflow)
    (output,) = job.get_outputs("1")
    assert (job.status, output.type, output.content_type) == ("succeeded", "image", "image/png")
    assert (await output.to_bytes()).startswith(b"\x89PNG")
    assert asset.created_new is True and asset.hash.startswith("blake3:")


async def test_the_same_content_is_uploaded_once(comfy: AsyncComfy, front: RunningFront) -> None:
    first = comfy.assets.from_bytes(image(), filename="a.png")
    again = comfy.assets.from_bytes(image(), filename="a.png")
    other_name = comfy.assets.from_bytes(image(), filename="b.png")
    ids = [await asset.commit() for asset in (first, again, other_name)]
    assert ids[0] == ids[1] != ids[2] and again.created_new is False
    folder = front.front.services.files.assets.folder
    assert len(list(folder.iterdir())) == 1
    fetched = await comfy.assets.get(ids[0])
    assert fetched.hash == first.hash
    await first.delete()
    with pytest.raises(NotFound):
        await comfy.assets.get(ids[0])
    assert len(list(folder.iterdir())) == 1  # the other record has it still
    await other_name.delete()
    assert not list(folder.iterdir())


async def test_events_tell_progress_outputs_and_the_end(comfy: AsyncComfy, front: RunningFront) -> None:
    job = await comfy.submit(comfy.workflows.from_json(steps(4, hold=2)))
    seen: list[Any] = []
    async for event in job.events():
        seen.append(event)
        if isinstance(event, Progress) and event.steps:
            front.engine.go_on.set()
    assert isinstance(seen[-1], StatusChange) and seen[-1].status == "succeeded"
    assert any(isinstance(event, OutputReady) for event in seen)
    assert max(event.value for event in seen if isinstance(event, Progress)) == 1.0


async def test_a_job_is_cancelled_listed_and_found_again(comfy: AsyncComfy, front: RunningFront) -> None:
    job = await comfy.submit(comfy.workflows.from_json(wait()))

    async def is_running() -> bool:
        return (await job.refresh()).status == "running"

    await until(is_running)
    assert (await job.cancel()).status == "canceled"
    found = await comfy.jobs.get(job.id)
    assert found.status == "canceled" and (await found.get_workflow()).graph == wait()
    await comfy.run(comfy.workflows.from_json(draw()))
    first = (await front.http.get("/api/v2/jobs?limit=1")).json()
    assert len(first["jobs"]) == 1
    second = (await front.http.get(f"/api/v2/jobs?limit=1&cursor={first['next_cursor']}")).json()
    assert [item["id"] for item in second["jobs"]] == [job.id] and "next_cursor" not in second


async def test_what_goes_wrong_is_raised_as_the_sdks_errors(comfy: AsyncComfy, front: RunningFront) -> None:
    with pytest.raises(JobFailed) as failed:
        await comfy.run(comfy.workflows.from_json(fail()))
    error = failed.value.error
    assert error is not None and (error.code, error.node_id) == ("node_execution_error", "1")
    with pytest.raises(ComfyError) as wrong:
        await comfy.submit(comfy.workflows.from_json(draw(size=65)))
    assert wrong.value.code == "invalid_workflow"
    missing = {
        "1": {"class_type": "Paint", "inputs": {"text": "x", "image": {"__type": "core/ASSET", "info": {"id": "no"}}}}
    }
    with pytest.raises(ComfyError) as asset:
        await comfy.submit(comfy.workflows.from_json(missing))
    assert asset.value.code == "missing_asset"
    with pytest.raises(NotFound):
        await comfy.jobs.get("none")


async def test_an_idempotency_key_never_runs_twice(front: RunningFront) -> None:
    headers = {"Idempotency-Key": "order-1"}

    async def submit(text: str) -> Any:
        return await front.http.post("/api/v2/jobs", json={"workflow": draw(text)}, headers=headers)

    first, again = await asyncio.gather(submit("x"), submit("x"))
    assert (first.status_code, again.status_code, first.json()["id"]) == (201, 201, again.json()["id"])
    other = await submit("y")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reuse")
    await front.until(first.json()["id"], "completed")
    assert len(front.engine.runs) == 1


async def test_an_asset_is_named_in_any_request(front: RunningFront) -> None:
    form = {"file": ("photo.png", image(), "image/png")}
    asset = (await front.http.post("/api/v2/assets", files=form)).json()
    response = await front.sync(paint(), overrides={"1.image": f"asset:{asset['id']}"})
    assert response.status_code == 200, response.text
    unknown = await front.sync(paint(image="asset:none"))
    (problem,) = unknown.json()["error"]["problems"]
    assert (unknown.status_code, problem["type"], problem["field"]) == (
        422,
        "missing_asset",
        "input.workflow_json.1.image",
    )
    wrong = await front.http.post("/api/v2/assets", files=form, data={"expected_hash": "blake3:00"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (409, "hash_mismatch")
    content = await front.http.get(f"/api/v2/assets/{asset['id']}/content", headers={"Range": "bytes=1-3"})
    assert (content.status_code, content.content) == (206, b"PNG")
    (front.front.services.files.assets.folder / asset["hash"].removeprefix("blake3:")).unlink()  # a new machine
    assert (await front.http.get(f"/api/v2/assets/{asset['id']}/content")).status_code == 404
    known = {"hash": asset["hash"], "file_path": "photo.png"}
    assert (await front.http.post("/api/v2/assets/from-hash", json=known)).status_code == 404
    uploaded_ms = int(time.time() * 1000)
    assert (await front.http.post("/api/v2/assets", files=form)).json()["id"] == asset["id"]
    await front.front.services.files.assets.forget_unused(uploaded_ms)
    assert (await front.http.get(f"/api/v2/assets/{asset['id']}/content")).status_code == 200, "it was uploaded again"
    await front.front.services.files.assets.forget_unused(2**60)
    assert (await front.http.get(f"/api/v2/assets/{asset['id']}")).status_code == 404


async def test_a_request_with_an_unknown_asset_leaves_no_copy_of_the_others(front: RunningFront) -> None:
    form = {"file": ("photo.png", image(), "image/png")}
    asset = (await front.http.post("/api/v2/assets", files=form)).json()
    workflow = paint(image=f"asset:{asset['id']}") | {"2": paint(image="asset:none")["1"]}
    assert (await front.sync(workflow)).status_code == 422
    (front.front.services.files.assets.folder / asset["hash"].removeprefix("blake3:")).unlink()
    kept = (await front.http.post("/api/v2/assets", files={"file": ("b.png", image("blue"), "image/png")})).json()
    workflow = paint(image=f"asset:{kept['id']}") | {"2": paint(image=f"asset:{asset['id']}")["1"]}
    gone = await front.sync(workflow)
    assert (gone.status_code, gone.json()["error"]["problems"][0]["type"]) == (422, "missing_asset")
    assert not list(front.front.services.files.assets.folder.parent.rglob(".partial-*"))


async def test_a_content_type_is_one_that_a_header_may_hold(front: RunningFront) -> None:
    form = {"file": ("photo.png", image(), "image/png")}
    for kind in ("text/plain\r\nX-Other: 1", "\u043a\u0438\u0440", "image", "a/" + "b" * 300):
        refused = await front.http.post("/api/v2/assets", files=form, data={"content_type": kind})
        assert (refused.status_code, refused.json()["error"]["details"]["problems"][0]["field"]) == (
            422,
            "content_type",
        )
    assert not front.front.services.files.assets.folder.exists()


async def test_labels_are_kept_listed_and_searched(comfy: AsyncComfy, front: RunningFront) -> None:
    first = await comfy.submit(comfy.workflows.from_json(draw("a")), metadata={"client": "acme", "run": "1_%"})
    second = await comfy.submit(comfy.workflows.from_json(draw("b")), metadata={"client": "acme", "run": "2"})
    await comfy.submit(comfy.workflows.from_json(draw("c")), metadata={"client": "ACME"})
    await front.sync(draw("d"), metadata={"client": "acme", "run": 2, "nested": {"run": "2"}}, request_id="plain")
    assert (await comfy.jobs.get(first.id)).metadata == {"client": "acme", "run": "1_%"}

    async def listed(**labels: str) -> list[str]:
        return [job.id async for job in comfy.list_jobs(metadata=labels, limit=1)]

    assert await listed(client="acme") == ["plain", second.id, first.id]
    assert await listed(client="acme", run="2") == [second.id] and await listed(run="1_%") == [first.id]
    assert await listed(client="other") == []


@pytest.mark.parametrize(
    "labels", [{"": "a"}, {"k" * 65: "a"}, {"a": "v" * 513}, {"a": 5}, {str(number): "a" for number in range(17)}]
)
async def test_labels_over_the_limits_are_refused(
    comfy: AsyncComfy, front: RunningFront, labels: dict[str, Any]
) -> None:
    with pytest.raises(ComfyError) as raised:
        await comfy.submit(comfy.workflows.from_json(draw()), metadata=labels)
    assert raised.value.code == "metadata_invalid"
    for query, code in (("metadata[a", "invalid_metadata_filter"), ("cursor=x", "invalid_cursor")):
        refused = await front.http.get(f"/api/v2/jobs?{query}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, code)


async def test_events_show_the_unfinished_image_unless_it_is_not_wanted(comfy: AsyncComfy, front: RunningFront) -> None:
    job = await comfy.submit(comfy.workflows.from_json(steps(4, hold=2)))
    shown: list[Preview] = []
    async for event in job.events():
        if isinstance(event, Preview):
            shown.append(event)
            front.engine.go_on.set()
    assert shown and (shown[0].node_id, shown[0].content_type) == ("2", "image/jpeg")
    assert shown[0].data.startswith(b"image ")
    body = {"workflow": steps(4, hold=9), "extra_data": {"preview_method": "none"}}
    plain = (await front.http.post("/api/v2/jobs", json=body)).json()
    events = (await front.http.get(f"/api/v2/jobs/{plain['id']}/events")).text
    assert "event: status" in events and "event: preview" not in events
