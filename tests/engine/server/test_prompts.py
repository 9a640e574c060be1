"""Prompts over HTTP: submitted, ordered, interrupted, deleted, and told in the history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.nodes.built_in import built_in_nodes
from tests.engine.server.conftest import Server, held, serving, shown


async def finished(server: Server, prompt_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            entry = await server.get(f"/history/{prompt_id}")
            if entry:
                found: dict[str, Any] = entry[prompt_id]
                return found
            await asyncio.sleep(0.01)


async def entered(server: Server) -> None:
    assert await asyncio.to_thread(server.gate.entered.wait, 60)


async def test_a_prompt_runs_and_its_history_lists_its_outputs(server: Server) -> None:
    answer = await server.post("/prompt", prompt=shown(4), prompt_id="mine", extra_data={"extra_pnginfo": {"a": 1}})
    assert answer == {"prompt_id": "mine", "number": 0, "node_errors": {}}
    entry = await finished(server, "mine")
    assert entry["outputs"] == {"2": {"number": [4]}}
    assert entry["status"]["status_str"] == "success" and entry["status"]["completed"] is True
    assert [kind for kind, _ in entry["status"]["messages"]] == [
        "execution_start",
        "execution_cached",
        "execution_success",
    ]
    assert entry["prompt"][:3] == [0, "mine", shown(4)] and entry["prompt"][4] == ["2"]
    assert entry["meta"]["2"] == {"node_id": "2", "display_node": "2", "parent_node": None, "real_node_id": "2"}


async def test_a_loop_that_is_too_long_is_refused_with_its_input(tmp_path: Path) -> None:
    prompt: dict[str, Any] = {
        "start": {"class_type": "StartLoop", "inputs": {"mode": "simple", "mode.num_iterations": 1001}},
        "end": {"class_type": "EndLoop", "inputs": {"output_value": ["start", 0], "accumulate": False}},
        "show": {"class_type": "PreviewAny", "inputs": {"source": ["end", 0]}},
    }
    prompt["start"]["inputs"]["cache_iterations"] = False
    names = ("StartLoop", "EndLoop", "PreviewAny")
    async with serving(tmp_path, *(item for item in built_in_nodes() if item.class_type in names)) as server:
        response = await server.client.post("/prompt", json={"prompt": prompt})
        (error,) = (await response.json())["node_errors"]["start"]["errors"]
        assert response.status == 400 and error["extra_info"]["input_name"] == "mode.num_iterations"
        (problem,) = (await server.post("/api/v1/workflow", prompt=prompt))["problems"]
    assert (problem["type"], problem["field"]) == ("loop_too_long", "mode.num_iterations")
    assert problem["allowed"]["max"] == 1000 and problem["extra"] == {"received": 1001}


async def test_waiting_prompts_are_ordered_and_can_be_deleted(server: Server) -> None:
    await server.post("/prompt", prompt=held(), prompt_id="running")
    await entered(server)
    for prompt_id, place in (("a", {}), ("b", {"front": True}), ("c", {"number": -100}), ("d", {})):
        await server.post("/prompt", prompt=shown(), prompt_id=prompt_id, **place)
    queue = await server.get("/queue")
    assert [item[1] for item in queue["queue_running"]] == ["running"]
    assert [item[1] for item in queue["queue_pending"]] == ["c", "b", "a", "d"]
    assert await server.get("/prompt") == {"exec_info": {"queue_remaining": 5}}
    await server.post("/queue", delete=["a", "nobody"])
    plain = await server.get("/api/v1/queue")
    assert plain["running"]["prompt_id"] == "running"
    assert [(item["prompt_id"], item["position"]) for item in plain["waiting"]] == [("c", 1), ("b", 2), ("d", 3)]
    assert (await server.client.delete("/api/v1/queue/d")).status == 204
    assert (await server.client.delete("/api/v1/queue/d")).status == 404
    await server.post("/queue", clear=True)
    assert (await server.get("/queue"))["queue_pending"] == []


async def test_interrupting_another_prompt_leaves_the_running_one(server: Server) -> None:
    await server.post("/prompt", prompt=held(), prompt_id="running")
    await entered(server)
    await server.post("/interrupt", prompt_id="another")
    assert (await server.get("/api/v1/heartbeat"))["running"] == "running"
    await server.post("/interrupt", prompt_id="running")
    entry = await finished(server, "running")
    assert entry["status"]["status_str"] == "error"
    kind, data = entry["status"]["messages"][-1]
    assert (kind, data["node_id"], data["node_type"]) == ("execution_interrupted", "1", "Held")


async def test_interrupting_without_a_body_stops_what_runs_and_nothing_later(server: Server) -> None:
    assert (await server.client.post("/interrupt")).status == 200
    await server.post("/prompt", prompt=held(), prompt_id="first")
    await entered(server)
    assert (await server.client.post("/interrupt")).status == 200
    await finished(server, "first")
    await server.post("/prompt", prompt=shown(), prompt_id="second")
    assert (await finished(server, "second"))["status"]["completed"] is True


async def test_a_prompt_that_cannot_run_is_refused_with_its_problems(server: Server) -> None:
    bad = shown()
    bad["1"]["inputs"]["value"] = 1000
    response = await server.client.post("/prompt", json={"prompt": bad})
    body = await response.json()
    assert response.status == 400
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    assert body["node_errors"]["1"]["errors"][0]["type"] == "value_bigger_than_max"
    assert await server.get("/history") == {}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b"{}",
        b"",
        b"[" * 100_000,
        b'{"prompt": {}, "number": "x"}',
        b'{"prompt": {}, "number": NaN}',
        b'{"prompt": {}, "number": 1e999}',
        b'{"prompt": {}, "extra_data": 3}',
        b'{"prompt": {}, "extra_data": {"extra_pnginfo": 3}}',
        b'{"prompt": {}, "partial_execution_targets": 3}',
        b'{"prompt": {}, "partial_execution_targets": "12"}',
        b'{"prompt": {}, "partial_execution_targets": [1]}',
    ],
)
async def test_a_body_that_holds_no_prompt_is_the_callers_mistake(server: Server, body: bytes) -> None:
    response = await server.client.post("/prompt", data=body)
    assert response.status == 400
    assert (await response.json())["error"]["type"]


async def test_history_is_paged_and_deleted(server: Server) -> None:
    for prompt_id in "abc":
        await server.post("/prompt", prompt=shown(), prompt_id=prompt_id)
        await finished(server, prompt_id)
    assert list(await server.get("/history?max_items=2")) == ["b", "c"]
    assert list(await server.get("/history?max_items=1&offset=0")) == ["a"]
    assert (await server.client.get("/history?max_items=x")).status == 400
    newest = await server.get("/api/v1/history?limit=1")
    assert newest["entries"][0]["prompt_id"] == "c" and newest["total"] == 3
    assert (await server.get("/api/v1/history/a"))["results"] == {"2": {"number": [1]}}
    await server.post("/history", delete=["a"])
    assert (await server.client.get("/api/v1/history/a")).status == 404
    await server.post("/history", clear=True)
    assert await server.get("/history") == {}


async def test_freeing_answers_at_once_while_a_prompt_runs(server: Server) -> None:
    await server.post("/prompt", prompt=held(), prompt_id="running")
    await entered(server)
    await server.post("/free", unload_models=True, free_memory=True)
    assert (await server.get("/prompt"))["exec_info"]["queue_remaining"] == 1


async def test_the_heartbeat_moves_with_the_running_prompt(server: Server) -> None:
    await server.post("/prompt", prompt=held(), prompt_id="running")
    await entered(server)
    first = await server.get("/api/v1/heartbeat")
    assert first["engine_ready"] and first["running"] == "running"
    async with asyncio.timeout(60):
        while (await server.get("/api/v1/heartbeat"))["events"] <= first["events"]:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)


async def test_every_route_is_also_below_api(server: Server) -> None:
    for path in (
        "/queue",
        "/history",
        "/prompt",
        "/features",
        "/models",
        "/system_stats",
        "/embeddings",
        "/extensions",
    ):
        assert (await server.client.get(f"/api{path}")).status == 200


async def test_foreign_pages_may_not_call_a_loopback_server(server: Server) -> None:
    response = await server.client.post("/interrupt", headers={"Origin": "http://evil.example"})
    assert response.status == 403
    assert "Access-Control-Allow-Origin" not in (await server.client.get("/queue")).headers


async def test_an_interruption_right_behind_its_prompt_is_not_lost(server: Server) -> None:
    await server.post("/prompt", prompt=shown(), prompt_id="warm")
    await finished(server, "warm")
    for number in range(10):
        await server.post("/prompt", prompt=held(number), prompt_id=f"p{number}")
        await server.post("/interrupt", prompt_id=f"p{number}")
        entry = await finished(server, f"p{number}")
        assert entry["status"]["messages"][-1][0] == "execution_interrupted"


async def test_history_shows_the_values_in_their_declared_types(server: Server) -> None:
    prompt = shown()
    prompt["1"]["inputs"]["value"] = "4"
    await server.post("/prompt", prompt=prompt, prompt_id="cast")
    entry = await finished(server, "cast")
    assert entry["prompt"][2] == shown(4) and entry["outputs"] == {"2": {"number": [4]}}


async def test_a_path_that_has_no_such_method_says_which_it_has(server: Server) -> None:
    for path, allowed in (("/prompt", "GET,HEAD,POST"), ("/api/object_info", "GET,HEAD")):
        answer = await server.client.put(path)
        assert (answer.status, answer.headers["Allow"]) == (405, allowed)
    assert (await server.client.put("/nothing/here")).status == 404
