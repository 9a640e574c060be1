"""Events of a run reach the socket in time even when no others follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from engine.events import NodeRef, NodeStarted, NodeText, RunSaving
from engine.server.progress import WHOLE_UP_TO
from engine.server.queue import QueuedPrompt
from engine.server.relay import RunRelay
from engine.server.websocket import Clients, Connection


class Listener:
    """A connection whose client waits until it has heard of so many nodes."""

    sid = "me"
    feature_flags: Mapping[str, Any] = {}

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


async def test_in_a_large_run_a_node_that_begins_is_reported_though_nothing_follows_for_long() -> None:
    clients, listener = Clients(), Listener(WHOLE_UP_TO + 3)
    clients.add(cast(Connection, listener))
    item = QueuedPrompt(0.0, "p", {}, {"client_id": listener.sid}, ())
    relay = RunRelay(item, clients, asyncio.get_running_loop())
    relay.open()
    for index in range(WHOLE_UP_TO + 3):
        relay.on_event(NodeStarted("p", NodeRef.of(str(index))))
    await asyncio.wait_for(listener.has_heard_of_all.wait(), 20)
    assert listener.num_states < WHOLE_UP_TO + 3  # what was held back came in one message


async def test_words_of_a_node_go_out_as_comfyuis_binary_message() -> None:
    sent: list[Any] = []
    clients = Clients()
    clients.add(cast(Connection, SimpleNamespace(sid="me", feature_flags={}, send=sent.append)))
    relay = RunRelay(QueuedPrompt(0.0, "p", {}, {"client_id": "me"}, ()), clients, asyncio.get_running_loop())
    relay.open()
    relay.on_event(NodeText("p", NodeRef.of("12"), "width: 8, height: 4\n batch size: 1"))
    await asyncio.sleep(0)
    assert sent == [b"\0\0\0\3\0\0\0\x0212width: 8, height: 4\n batch size: 1"]


async def test_the_notice_that_a_run_only_saves_is_sent_to_those_who_asked_for_it() -> None:
    for flags, expected in (({}, []), ({"darkroom_saving": True}, ["darkroom_saving"])):
        sent: list[Any] = []
        clients = Clients()
        clients.add(cast(Connection, SimpleNamespace(sid="me", feature_flags=flags, send=sent.append)))
        relay = RunRelay(QueuedPrompt(0.0, "p", {}, {"client_id": "me"}, ()), clients, asyncio.get_running_loop())
        relay.open()
        relay.on_event(RunSaving("p"))
        await asyncio.sleep(0)
        assert relay.is_past_nodes.is_set()
        assert [json.loads(payload)["type"] for payload in sent] == expected
