"""Events of a run reach the socket in time even when no others follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

from aiohttp import web

from darkroom.contract.graph.node_ref import NodeRef
from darkroom.engine.events import NodeProgress, NodeStarted, NodeText, OutputReady, RunSaving
from darkroom.engine.server.progress import WHOLE_UP_TO
from darkroom.engine.server.queue import QueuedPrompt
from darkroom.engine.server.relay import RunRelay
from darkroom.engine.server.websocket import Clients, Connection


class Listener:
    """A connection whose client waits until it has heard of so many nodes."""

    sid = "me"
    feature_flags: Mapping[str, Any] = {}
    unread: frozenset[str] = frozenset()

    def __init__(self, num_nodes: int) -> None:
        self.num_states = 0
        self.has_heard_of_all = asyncio.Event()
        self._num_nodes = num_nodes

    def send(self, payload: str) -> None:
        message = json.loads(payload)
        if message["type"] == "progress_state":
            self.num_states += 1
            if len(message["data"]["nodes"]) == self._num_nodes:
                self.has_heard_of_all.set()


class Sent(Connection):
    """A connection that keeps what is sent."""

    def __init__(self, **flags: object) -> None:
        super().__init__("me", cast(web.WebSocketResponse, None), lambda: None)
        self.take_flags(flags)
        self.payloads: list[str | bytes] = []

    def send(self, payload: str | bytes) -> None:
        self.payloads.append(payload)

    @property
    def types(self) -> list[str]:
        return [json.loads(payload)["type"] for payload in self.payloads]


def relay_to(connection: Connection) -> RunRelay:
    clients = Clients()
    clients.add(connection)
    relay = RunRelay(QueuedPrompt(0.0, "p", {}, {"client_id": "me"}, ()), clients, asyncio.get_running_loop())
    relay.open()
    return relay


async def test_in_a_large_run_a_node_that_begins_is_reported_though_nothing_follows_for_long() -> None:
    clients, listener = Clients(), Listener(WHOLE_UP_TO + 3)
    clients.add(cast(Connection, listener))
    item = QueuedPrompt(0.0, "p", {}, {"client_id": listener.sid}, ())
    relay = RunRelay(item, clients, asyncio.get_running_loop())
    relay.open()
    for index in range(WHOLE_UP_TO + 3):
        relay.on_event(NodeStarted("p", NodeRef.of(str(index))))
    await asyncio.wait_for(listener.has_heard_of_all.wait(), 60)
    assert listener.num_states < WHOLE_UP_TO + 3  # what was held back came in one message


async def test_words_of_a_node_go_out_as_comfyuis_binary_message() -> None:
    sent = Sent()
    relay_to(sent).on_event(NodeText("p", NodeRef.of("12"), "width: 8, height: 4\n batch size: 1"))
    await asyncio.sleep(0)
    assert sent.payloads == [b"\0\0\0\3\0\0\0\x0212width: 8, height: 4\n batch size: 1"]


async def test_the_notice_that_a_run_only_saves_is_sent_to_those_who_asked_for_it() -> None:
    for sent, expected in ((Sent(), []), (Sent(darkroom_saving=True), ["darkroom_saving"])):
        relay = relay_to(sent)
        relay.on_event(RunSaving("p"))
        await asyncio.sleep(0)
        assert relay.is_past_nodes.is_set()
        assert sent.types == expected


async def test_a_client_gets_no_messages_of_types_that_it_does_not_read() -> None:
    node = NodeRef.of("1")
    for sent, expected in (
        (Sent(), ["progress_state", "executing", "progress_state", "progress", "executed"]),
        (Sent(darkroom_unread=["progress_state", "executed"]), ["executing", "progress"]),
        (Sent(darkroom_unread="executed"), ["progress_state", "executing", "progress_state", "progress", "executed"]),
    ):
        relay = relay_to(sent)
        for event in (NodeStarted("p", node), NodeProgress("p", node, 1, 2), OutputReady("p", node, {}, False)):
            relay.on_event(event)
        await asyncio.sleep(0)
        assert sent.types == expected
