"""Receivers of messages on a socket; a client which reads nothing harms only itself."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from darkroom.engine.server.websocket import Clients, Connection
from tests.engine.server.conftest import Server, held, shown
from tests.engine.server.test_prompts import entered


async def until(socket: Any, kind: str, **data: Any) -> list[dict[str, Any]]:
    """Every message up to the first of that kind and data."""
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while not (seen and seen[-1]["type"] == kind and data.items() <= seen[-1]["data"].items()):
            seen.append(await socket.receive_json())
    return seen


async def test_a_client_receives_the_queue_and_its_id(server: Server) -> None:
    socket = await server.client.ws_connect("/ws")
    first = await socket.receive_json()
    assert first["type"] == "status" and first["data"]["status"] == {"exec_info": {"queue_remaining": 0}}
    assert len(first["data"]["sid"]) == 32
    named = await server.client.ws_connect("/ws?clientId=me")
    assert (await named.receive_json())["data"]["sid"] == "me"


class UnreadSocket:
    """The server's end of a connection whose client reads nothing: whatever is sent waits for ever."""

    async def send_str(self, payload: str) -> None:
        await asyncio.Event().wait()

    async def close(self, **how: Any) -> None:
        await asyncio.Event().wait()


async def test_a_client_that_reads_nothing_is_cut_off_in_the_middle_of_a_message() -> None:
    cuts: list[str] = []
    connection = Connection("me", cast(Any, UnreadSocket()), lambda: cuts.append("cut"), max_outbox_bytes=100)
    connection.send("a" * 60)
    writer = asyncio.create_task(connection.write_forever())
    await asyncio.sleep(0)  # the first message is on its way
    connection.send("b" * 60)
    assert cuts == []
    connection.send("c" * 60)
    connection.send("d" * 60)
    assert cuts == ["cut"]
    writer.cancel()


async def test_a_client_that_reads_nothing_does_not_hold_up_the_servers_end() -> None:
    cut = asyncio.Event()
    clients = Clients()
    clients.add(Connection("me", cast(Any, UnreadSocket()), cut.set))
    await asyncio.wait_for(clients.close(), 10)
    assert cut.is_set()


async def test_feature_flags_are_answered_in_the_first_message_only(server: Server) -> None:
    socket = await server.client.ws_connect("/ws?clientId=me")
    await socket.receive_json()
    await socket.send_json({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
    answer = await socket.receive_json()
    assert answer["type"] == "feature_flags" and answer["data"]["supports_preview_metadata"] is True
    await socket.send_str("no json")
    await socket.send_json({"type": "feature_flags", "data": {}})
    await server.post("/prompt", prompt=shown(), client_id="me", prompt_id="p")
    assert all(message["type"] != "feature_flags" for message in await until(socket, "execution_success"))


async def test_a_run_is_sent_to_its_client_alone(server: Server) -> None:
    mine = await server.client.ws_connect("/ws?clientId=me")
    other = await server.client.ws_connect("/ws?clientId=other")
    await server.post("/prompt", prompt=shown(2), client_id="me", prompt_id="p")
    told = await until(mine, "executing", node=None)
    kinds = [message["type"] for message in told if message["type"] not in ("status", "progress_state")]
    assert kinds == [
        "execution_start",
        "execution_cached",
        "executing",
        "executing",
        "executed",
        "execution_success",
        "executing",
    ]
    await server.post("/prompt", prompt=shown(3), client_id="other", prompt_id="q")
    told = await until(other, "executing", node=None)
    assert all(message["data"].get("prompt_id", "q") == "q" for message in told)


async def test_a_client_that_comes_back_learns_where_its_prompt_is(server: Server) -> None:
    socket = await server.client.ws_connect("/ws?clientId=me")
    await server.post("/prompt", prompt=held(), client_id="me", prompt_id="p")
    await entered(server)
    await until(socket, "progress")
    await socket.close()
    again = await server.client.ws_connect("/ws?clientId=me")
    assert (await again.receive_json())["type"] == "status"
    assert await again.receive_json() == {"type": "executing", "data": {"node": "1"}}
    server.gate.opened.set()
    told = await until(again, "execution_success")
    states = [message["data"]["nodes"] for message in told if message["type"] == "progress_state"]
    assert list(states[-1]) == ["1", "2"]


async def test_a_second_connection_of_a_client_replaces_the_first(server: Server) -> None:
    first = await server.client.ws_connect("/ws?clientId=me")
    second = await server.client.ws_connect("/ws?clientId=me")
    await until(first, "status")
    await first.close()
    await server.post("/prompt", prompt=shown(), client_id="me", prompt_id="p")
    assert (await until(second, "executing", node=None))[-1]["data"]["prompt_id"] == "p"


async def test_of_a_prompt_without_client_everyone_receives_progress_and_interruption(server: Server) -> None:
    socket = await server.client.ws_connect("/ws")
    await server.post("/prompt", prompt=held(), prompt_id="p")
    await until(socket, "progress")
    await server.post("/interrupt")
    told = await until(socket, "execution_interrupted")
    assert not {"executing", "executed", "execution_start"} & {message["type"] for message in told}
