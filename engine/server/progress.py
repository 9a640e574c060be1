"""`progress_state`: how far each node of the running prompt is, in one message.

Every message names every node that has begun so far. Their JSON is kept node by node, made when a message needs it, so
that a message costs a join and a run that nobody watches next to nothing; runs of more than `WHOLE_UP_TO` nodes send at
most `PER_SECOND` of them, and the last: together they would grow with the square of the graph.
"""

from __future__ import annotations

import json

from darkroom.contract.graph.node_ref import NodeRef
from darkroom.engine.events import Event, NodeFinished, NodeProgress, NodeStarted
from darkroom.engine.server.messages import node_progress

WHOLE_UP_TO = 64
PER_SECOND = 10
PROGRESS_STATE = "progress_state"


class ProgressBoard:
    """The state of one run's nodes. `changed` after each event says whether a message is due."""

    def __init__(self, prompt_id: str) -> None:
        self._prompt_id = json.dumps(prompt_id)
        self._id = prompt_id
        self._states: dict[str, tuple[NodeRef, str, float, float]] = {}  # state, value, maximum
        self._parts: dict[str, str] = {}
        self._changed: dict[str, None] = {}  # in the order in which they began
        self._sent_at_seconds = float("-inf")
        self._is_behind = False

    def update(self, event: Event) -> bool:
        """Take an event in. False when it changes nothing here."""
        match event:
            case NodeStarted(_, node):
                self._set(node, "running", 0.0, 1.0)
            case NodeProgress(_, node, value, maximum):
                self._set(node, "running", value, maximum)
            case NodeFinished(_, node):
                known = self._states.get(node.node_id)
                maximum = 1.0 if known is None else known[3]
                self._set(node, "finished", maximum, maximum)
            case _:
                return False
        return True

    def message(self, now_seconds: float) -> str | None:
        """Return the message to send now, encoded; None while it is too early for the next."""
        if len(self._states) > WHOLE_UP_TO and now_seconds - self._sent_at_seconds < 1 / PER_SECOND:
            self._is_behind = True
            return None
        return self._encode(now_seconds)

    def held_back(self, now_seconds: float) -> str | None:
        """Return the message that `message` held back, encoded; None when there is none."""
        return self._encode(now_seconds) if self._is_behind else None

    def _set(self, node: NodeRef, state: str, value: float, maximum: float) -> None:
        self._states[node.node_id] = (node, state, value, maximum)
        self._changed[node.node_id] = None

    def _encode(self, now_seconds: float) -> str:
        self._sent_at_seconds = now_seconds
        self._is_behind = False
        for node_id in self._changed:
            part = json.dumps(node_progress(self._id, *self._states[node_id]))
            self._parts[node_id] = f"{json.dumps(node_id)}: {part}"
        self._changed.clear()
        nodes = ", ".join(self._parts.values())
        return f'{{"type": "{PROGRESS_STATE}", "data": {{"prompt_id": {self._prompt_id}, "nodes": {{{nodes}}}}}}}'
