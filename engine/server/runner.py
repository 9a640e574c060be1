"""Runs the queue: one prompt after the other through the engine, its messages to clients, its end into history."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from engine.log_context import logged_as
from engine.server import messages
from engine.server.engine_start import EngineStart
from engine.server.history import History, HistoryEntry
from engine.server.messages import Message
from engine.server.queue import PromptQueue, QueuedPrompt
from engine.server.relay import RunRelay
from engine.server.run_figures import RunFigures
from engine.server.websocket import Clients

if TYPE_CHECKING:
    from engine.engine import RunRequest

RETRY_SECONDS = 0.005

log = logging.getLogger(__name__)


class PromptRunner:
    """The only one to start prompts. Every change of the queue goes through here, so that clients hear of it."""

    def __init__(
        self, queue: PromptQueue, history: History, clients: Clients, start: EngineStart, figures: RunFigures
    ) -> None:
        self.num_events = 0
        self._queue = queue
        self._history = history
        self._clients = clients
        self._start = start
        self._figures = figures
        self._has_work = asyncio.Event()
        self._relay: RunRelay | None = None
        self._last_number = 0

    def next_number(self) -> int:
        """Return the place of a prompt that asks for none, counted from 0."""
        self._last_number += 1
        return self._last_number - 1

    def accept(self, item: QueuedPrompt) -> None:
        self._queue.put(item)
        self.tell_queue()
        self._has_work.set()

    async def interrupt(self, prompt_id: str | None) -> None:
        """Stop the running prompt (if it is that one); returns when the engine was told."""
        engine = self._start.engine_now()
        asked = [item for item in self._queue.all_running[::-1] if prompt_id in (None, item.prompt_id)]
        if engine is None or not asked:
            return
        running = asked[0]  # the one that has nodes to run: one that only saves its files is past interrupting
        log.info("interrupting prompt %s", running.prompt_id)
        # It may be on its way to the GPU thread, or just over: no event of ours tells, so ask again.
        while running in self._queue.all_running and not engine.interrupt(running.prompt_id):  # noqa: ASYNC110
            await asyncio.sleep(RETRY_SECONDS)

    def tell_queue(self) -> None:
        """Tell every client how long the queue is now."""
        self._clients.send(messages.status(self._queue.remaining))

    def greeting(self, sid: str) -> list[Message]:
        """Return the first messages to a client: the queue, and the current node for the running prompt's client."""
        running = self._queue.running
        greeting = [messages.status(self._queue.remaining, sid)]
        if running is not None and running.client_id == sid and self._relay and self._relay.current_node is not None:
            greeting.append(("executing", {"node": self._relay.current_node}))
        return greeting

    @property
    def current_node(self) -> str | None:
        return self._relay.current_node if self._relay else None

    @property
    def total_events(self) -> int:
        """Grows whenever the GPU thread reports anything."""
        return self.num_events + (self._relay.num_events if self._relay else 0)

    def seconds_since_event(self) -> float | None:
        """Return the seconds since the running prompt last reported; None while none runs."""
        return None if self._relay is None else round(time.monotonic() - self._relay.last_event_seconds, 3)

    async def run_forever(self) -> None:
        """Start prompts one after the other; the next may start while the last only saves its files."""
        before: asyncio.Task[None] | None = None
        try:
            while True:
                item = self._queue.start_next()
                if item is None:
                    self._has_work.clear()
                    await self._has_work.wait()
                    continue
                relay = RunRelay(item, self._clients, asyncio.get_running_loop(), self._figures)
                before = asyncio.create_task(self._run_to_end(item, relay, before))
                await self._until_next_may_start(before, relay)
        finally:
            if before is not None:
                before.cancel()

    async def _until_next_may_start(self, run: asyncio.Task[None], relay: RunRelay) -> None:
        past_nodes = asyncio.create_task(relay.is_past_nodes.wait())
        try:
            await asyncio.wait((run, past_nodes), return_when=asyncio.FIRST_COMPLETED)
        finally:
            past_nodes.cancel()
        if not run.done():
            self._queue.save()

    async def _run_to_end(self, item: QueuedPrompt, relay: RunRelay, before: asyncio.Task[None] | None) -> None:
        entry = await self._run(item, relay, before)
        if before is not None:
            await before
        self._queue.finish()
        self._has_work.set()
        self._history.add(entry)
        self.tell_queue()
        if item.client_id is not None:
            self._clients.send(messages.run_over(item.prompt_id), item.client_id)

    async def _run(self, item: QueuedPrompt, relay: RunRelay, before: asyncio.Task[None] | None) -> HistoryEntry:
        """Run one prompt to its end, and report nothing of it before the end of the one `before`.

        Never raises but CancelledError: what goes wrong is the run's, and is recorded.
        """
        with logged_as(item.prompt_id):
            return await self._run_logged(item, relay, before)

    async def _run_logged(self, item: QueuedPrompt, relay: RunRelay, before: asyncio.Task[None] | None) -> HistoryEntry:
        began_seconds = time.monotonic()
        try:
            engine = await self._start.engine()
            future = engine.submit(self._request(item), relay.on_event)
            if before is not None:
                await before
            self._relay = relay
            self.tell_queue()
            relay.open()
            result = await asyncio.wrap_future(future)
        except Exception:  # noqa: BLE001 - one run
            log.exception("prompt %s broke the engine", item.prompt_id)
            return HistoryEntry(item, {}, {}, "error", relay.history_messages)
        finally:
            relay.open()
            self.num_events += relay.num_events
            self._relay = None if self._relay is relay else self._relay
        log.info("prompt %s: %s in %.3f s", item.prompt_id, result.status, time.monotonic() - began_seconds)
        is_good = result.status == "success"
        return HistoryEntry(
            item, result.outputs, result.meta, "success" if is_good else "error", relay.history_messages
        )

    def _request(self, item: QueuedPrompt) -> RunRequest:
        # Not imported above: engine.engine imports torch, and the server answers before that is there.
        from engine.engine import RunRequest

        return RunRequest(
            prompt_id=item.prompt_id,
            prompt=item.prompt,
            outputs=item.outputs,
            extra_data=item.extra_data,
            wants_previews=self._clients.is_listening(item.client_id),
        )
