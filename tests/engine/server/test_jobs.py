"""ComfyUI's `/api/jobs`: the list, one job, cancelling; and the records in themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from darkroom.engine.server.history import HistoryEntry
from darkroom.engine.server.job_records import full_record, summarise
from darkroom.engine.server.queue import QueuedPrompt
from tests.engine.server.conftest import Server, held, shown

IMAGE = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 2, "color": 255}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "blue"}},
}


async def ended(server: Server, job_id: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            job = await server.get(f"/api/jobs/{job_id}")
            if job["status"] not in ("pending", "in_progress"):
                return job
            await asyncio.sleep(0.01)


async def running(server: Server, *waiting: str) -> None:
    """Start a prompt `held`, with others that wait behind it."""
    await server.post("/prompt", prompt=held(), prompt_id="held")
    assert await asyncio.to_thread(server.gate.entered.wait, 60)
    for job_id in waiting:
        await server.post("/prompt", prompt=shown(), prompt_id=job_id)


async def ids(server: Server, query: str = "") -> list[str]:
    return [job["id"] for job in (await server.get(f"/api/jobs{query}"))["jobs"]]


async def test_a_job_that_ended_has_times_files_outputs_and_its_graph(server: Server) -> None:
    workflow = {"id": "flow-1", "nodes": []}
    await server.post(
        "/prompt",
        prompt=IMAGE,
        prompt_id="a",
        extra_data={"extra_pnginfo": {"workflow": workflow}, "api_key_comfy_org": "secret"},
    )
    job = await ended(server, "a")
    assert (job["status"], job["outputs_count"], job["workflow_id"]) == ("completed", 2, "flow-1")
    assert job["create_time"] <= job["execution_start_time"] <= job["execution_end_time"]
    assert job["preview_output"]["filename"] == "blue_00001_.png"
    assert (job["preview_output"]["nodeId"], job["preview_output"]["mediaType"]) == ("2", "images")
    assert [file["filename"] for file in job["outputs"]["2"]["images"]] == ["blue_00001_.png", "blue_00002_.png"]
    assert job["execution_status"]["completed"] is True and job["workflow"]["prompt"] == IMAGE
    assert "secret" not in str(job)
    (listed,) = (await server.get("/api/jobs"))["jobs"]
    assert listed == {key: job[key] for key in job if key not in ("outputs", "execution_status", "workflow")}


async def test_the_list_has_every_state_and_is_filtered_sorted_and_paged(server: Server) -> None:
    await running(server, "first", "second")
    assert await ids(server, "?status=in_progress") == ["held"]
    assert await ids(server, "?status=pending&sort_order=asc") == ["first", "second"]
    page = await server.get("/api/jobs?limit=2&sort_order=asc")
    assert [job["id"] for job in page["jobs"]] == ["held", "first"]
    assert page["pagination"] == {"offset": 0, "limit": 2, "total": 3, "has_more": True}
    assert await ids(server, "?limit=2&offset=2&sort_order=asc") == ["second"]
    assert await ids(server, "?status=completed,failed") == [] and await ids(server, "?workflow_id=none") == []
    server.gate.opened.set()
    await ended(server, "second")
    assert (await ids(server, "?sort_by=execution_duration"))[0] == "held"
    assert sorted(await ids(server, "?status=completed")) == ["first", "held", "second"]


async def test_cancelling_interrupts_what_runs_and_forgets_what_waits(server: Server) -> None:
    await running(server, "first", "second")
    assert await server.post("/api/jobs/first/cancel") == {"cancelled": True}
    assert await server.post("/api/jobs/cancel", job_ids=["second", "held", "unknown"]) == {"cancelled": True}
    assert (await ended(server, "held"))["status"] == "cancelled"
    assert await ids(server) == ["held"] == await ids(server, "?status=cancelled")
    assert await server.post("/api/jobs/held/cancel") == {"cancelled": False}
    assert await server.post("/api/jobs/cancel", job_ids=["unknown"]) == {"cancelled": False}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("status=done", "pending, in_progress, completed, failed, cancelled"),
        ("sort_by=name", "'created_at' or 'execution_duration'"),
        ("sort_order=up", "'asc' or 'desc'"),
        ("limit=0", "limit must be a positive integer"),
        ("limit=x", "limit must be an integer"),
        ("offset=x", "offset must be an integer"),
    ],
)
async def test_a_bad_query_is_refused_with_what_is_allowed(server: Server, query: str, named: str) -> None:
    response = await server.client.get(f"/api/jobs?{query}")
    assert response.status == 400 and named in (await response.json())["error"]


@pytest.mark.parametrize("body", [{}, {"job_ids": "a"}, {"job_ids": [["a"]]}, {"job_ids": [""]}])
async def test_bad_ids_are_refused_and_unknown_ones_not_found(server: Server, body: dict[str, Any]) -> None:
    response = await server.client.post("/api/jobs/cancel", json=body)
    assert response.status == 400 and "job_ids" in (await response.json())["error"]
    assert (await server.client.get("/api/jobs/unknown")).status == 404


def test_the_output_to_show_is_a_saved_image_then_a_temporary_one_then_text() -> None:
    text = {"text": ["x" * 2000]}
    note = {"files": [{"filename": "note.txt", "type": "output"}]}
    temporary = {"images": [{"filename": "t.png", "type": "temp"}], "animated": [False]}
    saved = {"gifs": [{"filename": "v.mp4", "type": "output", "format": "video/mp4"}]}
    other = {"latents": [{"filename": "l.latent", "type": "output"}]}
    outputs: dict[str, Any] = {"1": text}
    assert summarise({}) == (0, None) and summarise({"9": other}) == (1, None)
    num, value = summarise(outputs)
    assert num == 0 and value == {"content": "x" * 1024, "truncated": True, "nodeId": "1", "mediaType": "text"}
    for node_id, output, name in (("2", note, "note.txt"), ("3", temporary, "t.png"), ("4", saved, "v.mp4")):
        outputs[node_id] = output
        num, value = summarise(outputs)
        assert value is not None and (value["filename"], value["nodeId"]) == (name, node_id)
    assert num == 3


def test_names_of_models_are_files_and_failures_have_their_error() -> None:
    error = {"node_id": "1", "exception_message": "broken", "timestamp": 30}
    messages: list[tuple[str, dict[str, Any]]] = [("execution_start", {"timestamp": 10}), ("execution_error", error)]
    item = QueuedPrompt(1, "a", {}, {"create_time": 5, "extra_pnginfo": {"workflow": "none"}}, ("1",))
    job = full_record(HistoryEntry(item, {"1": {"result": ["m.GLB", None, "camera"]}}, {}, "error", messages))
    assert (job["status"], job["execution_error"], job["execution_end_time"]) == ("failed", error, 30)
    model = {"filename": "m.GLB", "type": "output", "subfolder": "", "mediaType": "3d"}
    assert job["outputs"] == {"1": {"result": [model, "camera"]}} and job["outputs_count"] == 1
