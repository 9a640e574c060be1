"""While the files of one prompt are written the next one runs, and clients see one after the other all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from tests.engine.server.conftest import NUMBER, Server, held, serving, shown
from tests.engine.server.test_prompts import entered, finished
from tests.engine.server.test_websocket import until


@pytest.fixture
def disk() -> threading.Event:
    """Set when files may be written."""
    return threading.Event()


@pytest.fixture
async def server(tmp_path: Path, disk: threading.Event) -> AsyncIterator[Server]:
    @node("Save", category="test", is_output=True)
    def save(context: NodeContext, *, number: NUMBER) -> NodeOutput:
        file = context.files.save_path("number", suffix=".txt")

        def write() -> None:
            assert disk.wait(60)
            if number == 13:
                file.path.write_text("half")
                raise OSError("the disk is full")
            file.path.write_text(str(number))

        context.files.submit(write)
        return NodeOutput({"files": [file.shown()]})

    async with serving(tmp_path, save) as made:
        yield made
        disk.set()


def saved(value: int) -> dict[str, Any]:
    return {
        "1": {"class_type": "Number", "inputs": {"value": value}},
        "2": {"class_type": "Save", "inputs": {"number": ["1", 0]}},
    }


async def test_the_next_prompt_runs_while_files_are_written(server: Server, disk: threading.Event) -> None:
    socket = await server.client.ws_connect("/ws?clientId=me")
    await server.post("/prompt", prompt=saved(1), client_id="me", prompt_id="a")
    await server.post("/prompt", prompt=held(), client_id="me", prompt_id="b")
    await server.post("/prompt", prompt=shown(), client_id="me", prompt_id="c")
    await entered(server)
    queue = await server.get("/queue")
    assert [item[1] for item in queue["queue_running"]] == ["a", "b"]
    assert [item[1] for item in queue["queue_pending"]] == ["c"]
    assert await server.get("/history") == {}
    disk.set()
    server.gate.opened.set()
    told = await until(socket, "executing", node=None, prompt_id="c")
    order = [message["data"]["prompt_id"] for message in told if message["type"] != "status"]
    assert order == sorted(order)
    ends = [message["type"] for message in told if message["data"].get("prompt_id") == "a"]
    assert ends[-4:] == ["executed", "progress_state", "execution_success", "executing"]
    assert list(await server.get("/history")) == ["a", "b", "c"]


async def test_executed_is_reported_when_the_file_is_there(server: Server, disk: threading.Event) -> None:
    socket = await server.client.ws_connect("/ws?clientId=me")
    await server.post("/prompt", prompt=saved(5), client_id="me", prompt_id="a")
    path = server.settings.output_path / "number_00001_.txt"
    await until(socket, "executing", node="2")
    async with asyncio.timeout(60):
        while not path.exists():  # noqa: ASYNC110 - made by another thread
            await asyncio.sleep(0.01)
    assert path.read_text() == ""
    disk.set()
    await until(socket, "executed", node="2")
    assert path.read_text() == "5"


async def test_the_same_prompt_again_waits_for_the_file_it_shows(server: Server, disk: threading.Event) -> None:
    for prompt_id in ("a", "b"):
        await server.post("/prompt", prompt=saved(1), prompt_id=prompt_id)
    await asyncio.sleep(0.1)
    assert await server.get("/history") == {}
    disk.set()
    first, second = await finished(server, "a"), await finished(server, "b")
    assert first["outputs"] == second["outputs"] and second["status"]["messages"][1][1]["nodes"] == ["1", "2"]


async def test_a_write_that_fails_fails_its_own_prompt_alone(server: Server, disk: threading.Event) -> None:
    await server.post("/prompt", prompt=saved(13), prompt_id="a")
    await server.post("/prompt", prompt=shown(), prompt_id="b")
    disk.set()
    failed = await finished(server, "a")
    assert failed["status"]["status_str"] == "error" and failed["outputs"] == {}
    assert failed["status"]["messages"][-1][1]["exception_message"].startswith("the disk is full")
    assert (await finished(server, "b"))["status"]["status_str"] == "success"
    assert list(server.settings.output_path.iterdir()) == []
    await server.post("/prompt", prompt=saved(13), prompt_id="again")
    assert (await finished(server, "again"))["status"]["status_str"] == "error"  # and not answered from the cache


async def test_an_interruption_reaches_the_prompt_whose_nodes_run(server: Server, disk: threading.Event) -> None:
    await server.post("/prompt", prompt=saved(1), prompt_id="a")
    await server.post("/prompt", prompt=held(), prompt_id="b")
    await entered(server)
    await server.post("/interrupt")
    disk.set()
    assert (await finished(server, "a"))["status"]["status_str"] == "success"
    assert (await finished(server, "b"))["status"]["messages"][-1][0] == "execution_interrupted"
