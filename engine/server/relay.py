"""One run's events on their way from the GPU thread to clients and history.

The GPU thread only appends to a deque and wakes the event loop when it is not awake already: that costs a node
microseconds. Everything else happens on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from darkroom.engine.events import Event, NodeStarted, NodeText, PreviewMade, RunInterrupted, RunSaving
from darkroom.engine.server import messages
from darkroom.engine.server.messages import Message
from darkroom.engine.server.progress import PER_SECOND, PROGRESS_STATE, ProgressBoard
from darkroom.engine.server.queue import QueuedPrompt
from darkroom.engine.server.run_figures import RunFigures
from darkroom.engine.server.websocket import Clients


class RunRelay:
    """Turns a run's events into messages, in their order. `history_messages` are those ComfyUI keeps.

    Nothing is passed on before `open`, so that a run that begins while another ends is not heard of before that end.
    `is_past_nodes` is set when the next run may begin.
    """

    def __init__(
        self, item: QueuedPrompt, clients: Clients, loop: asyncio.AbstractEventLoop, figures: RunFigures | None = None
    ) -> None:
        self.history_messages: list[tuple[str, Mapping[str, Any]]] = []
        self.current_node: str | None = None
        self.num_events = 0
        self.last_event_seconds = time.monotonic()
        self.is_past_nodes = asyncio.Event()
        self._is_open = False
        self.prompt_id = item.prompt_id
        self.client_id = item.client_id
        self._prompt = item.prompt
        self._figures = figures or RunFigures()
        self._clients = clients
        self._loop = loop
        self._board = ProgressBoard(item.prompt_id)
        self._inbox: deque[Event] = deque()
        self._is_awake = False
        self._preview: PreviewMade | None = None
        self._catching_up: asyncio.TimerHandle | None = None

    def on_event(self, event: Event) -> None:
        """Queue an event for the event loop. Called on the GPU thread."""
        self._figures.on_event(event, self._prompt)
        self._inbox.append(event)
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon_threadsafe(self.drain)

    def open(self) -> None:
        self._is_open = True
        self.drain()

    def drain(self) -> None:
        """Send all queued events. Called on the event loop."""
        self.last_event_seconds = time.monotonic()
        if not self._is_open:
            self._is_awake = False
            return
        self._is_awake = False  # before the first look, so that a later event wakes the loop again
        while self._inbox:
            self.num_events += 1
            self._pass_on(self._inbox.popleft())

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, NodeStarted):
            self.current_node = event.node.node_id
        if isinstance(event, RunSaving):
            if self._clients.wants_saving(self.client_id):
                self._clients.send(messages.saving(event), self.client_id)
            self.is_past_nodes.set()
            return
        message = messages.message_of(event)
        if message is not None and message[0] in messages.IN_HISTORY:
            self.history_messages.append(message)
        is_change = self._board.update(event)
        if not self._clients.is_listening(self.client_id):
            self._preview = None
            return
        if isinstance(event, NodeText):
            self._clients.send_encoded(messages.text(event), self.client_id)
            return
        if isinstance(event, PreviewMade):
            self._preview = event  # goes out around the progress message that follows it
            return
        if message is not None and message[0] in messages.RUN_ENDS:
            self._send_board(self._board.held_back(time.monotonic()))
        is_change = is_change and self._clients.is_reading(self.client_id, PROGRESS_STATE)
        if is_change and not self._send_board(self._board.message(time.monotonic())):
            self._catch_up_soon()
        self._send_with_preview(event, message)

    def _send_with_preview(self, event: Event, message: Message | None) -> None:
        """Send a preview before the progress to clients that know its node, after it to others, as ComfyUI does."""
        preview, self._preview = self._preview, None
        with_metadata = preview is not None and self._clients.wants_preview_metadata(self.client_id)
        if preview is not None and with_metadata:
            self._clients.send_encoded(messages.preview(preview, with_metadata=True), self.client_id)
        if message is not None and self._is_for_listeners(event, message):
            self._clients.send(message, self.client_id)
        if preview is not None and not with_metadata:
            self._clients.send_encoded(messages.preview(preview, with_metadata=False), self.client_id)

    def _is_for_listeners(self, event: Event, message: Message) -> bool:
        """Return True for progress and interruption of a prompt without a client, which go to all, as in ComfyUI."""
        return self.client_id is not None or isinstance(event, RunInterrupted) or message[0] == "progress"

    def _send_board(self, encoded: str | None) -> bool:
        """Send a `progress_state` unless it is None; return False where there was nothing to send."""
        if encoded is not None:
            self._clients.send_encoded(encoded, self.client_id, PROGRESS_STATE)
        return encoded is not None

    def _catch_up_soon(self) -> None:
        """Schedule what was held back, to be sent even if no other event follows: a long node may have begun."""
        if self._catching_up is None:
            self._catching_up = self._loop.call_later(1 / PER_SECOND, self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = None
        self._send_board(self._board.held_back(time.monotonic()))
