"""Events that become ComfyUI's `progress_state` messages, and the number of them in a large run."""

from __future__ import annotations

import json
from typing import Any

from darkroom.contract.graph.node_ref import NodeRef
from darkroom.engine.events import NodeFinished, NodeProgress, NodeStarted, RunSucceeded
from darkroom.engine.server.progress import WHOLE_UP_TO, ProgressBoard

PROMPT = "p"


def nodes_of(encoded: str | None) -> dict[str, Any]:
    assert encoded is not None
    message = json.loads(encoded)
    assert message["type"] == "progress_state" and message["data"]["prompt_id"] == PROMPT
    nodes: dict[str, Any] = message["data"]["nodes"]
    return nodes


def test_a_message_names_every_node_begun_so_far() -> None:
    board = ProgressBoard(PROMPT)
    assert board.update(NodeStarted(PROMPT, NodeRef.of("1")))
    assert board.update(NodeFinished(PROMPT, NodeRef.of("1")))
    assert board.update(NodeStarted(PROMPT, NodeRef("9.1", "9", "9", "9.1")))
    assert board.update(NodeProgress(PROMPT, NodeRef("9.1", "9", "9", "9.1"), 3, 20))
    nodes = nodes_of(board.message(0.0))
    assert nodes["1"] == {
        "value": 1.0,
        "max": 1.0,
        "state": "finished",
        "node_id": "1",
        "prompt_id": PROMPT,
        "display_node_id": "1",
        "parent_node_id": None,
        "real_node_id": "1",
    }
    assert (nodes["9.1"]["value"], nodes["9.1"]["max"], nodes["9.1"]["state"]) == (3, 20, "running")
    assert (nodes["9.1"]["display_node_id"], nodes["9.1"]["parent_node_id"]) == ("9", "9")


def test_other_events_bring_no_message() -> None:
    assert not ProgressBoard(PROMPT).update(RunSucceeded(PROMPT, 0))


def test_large_runs_send_ten_a_second_and_the_last() -> None:
    board = ProgressBoard(PROMPT)
    times = []
    for index in range(WHOLE_UP_TO + 1000):
        board.update(NodeStarted(PROMPT, NodeRef.of(str(index))))
        now = index / 1000
        if board.message(now) is not None and index >= WHOLE_UP_TO:
            times.append(now)
    assert 9 <= len(times) <= 11  # in one second
    assert len(nodes_of(board.held_back(1.0))) == WHOLE_UP_TO + 1000
    assert board.held_back(1.0) is None
