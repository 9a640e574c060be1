"""Runs the queue: prompts through the engine, their messages to clients, their ends into history."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from darkroom.engine.log_context import logged_as
from darkroom.engine.server import messages
from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.server.history import History, HistoryEntry
from darkroom.engine.server.log_records import PROMPT_ENDS
from darkroom.engine.server.messages import Message
from darkroom.engine.server.queue import PromptQueue, QueuedPrompt
from darkroom.engine.server.relay import RunRelay
from darkroom.engine.server.run_figures import RunFigures
from darkroom.engine.server.websocket import Clients

if TYPE_CHECKING:
    from darkroom.engine.engine import Engine, RunRequest

RETRY_SECONDS = 0.005

log = logging.getLogger(__name__)
ends = logging.getLogger(PROMPT_ENDS)


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
        self._relays: list[RunRelay] = []  # of the running prompts that clients hear of, in the order they began
        self._continued_by: dict[str, list[str]] = {}  # running prompts, and those that their nodes queued
        self.number = 0  # of the next prompt that asks for none; packs read and set it, from any thread

    def next_number(self) -> int:
        """Return the place of a prompt that asks for none, counted from 0."""
        self.number += 1
        return self.number - 1

    def accept(self, item: QueuedPrompt) -> None:
        if item.continued is not None:
            self._continued_by.setdefault(item.continued.prompt_id, []).append(item.prompt_id)
        self._queue.put(item)
        self.tell_queue()
        self._has_work.set()

    async def interrupt(self, prompt_id: str | None) -> bool:
        """Stop the running prompts, or the one of that id; returns when the engine was told.

        True when the engine took an interruption; False when none of them ran, or they ended first.
        """
        engine = self._start.engine_now()
        running = self._queue.computing or self._queue.all_running  # one that only saves is past interrupting
        asked = [item for item in running if prompt_id in (None, item.prompt_id)]
        if engine is None:
            return False
        return any(await asyncio.gather(*(self._interrupt(engine, item) for item in asked)))

    def delete(self, prompt_id: str) -> bool:
        """Take a waiting prompt out of the queue. False when none of that id waits."""
        return self._take_out([item for item in self._queue.waiting() if item.prompt_id == prompt_id])

    def clear(self) -> None:
        """Take every waiting prompt out of the queue."""
        self._take_out(self._queue.waiting())
        self.tell_queue()

    def _take_out(self, items: Sequence[QueuedPrompt]) -> bool:
        engine = self._start.engine_now()
        for item in items:
            self._queue.delete(item.prompt_id)
            if item.continued is not None and engine is not None:
                engine.runs.slots.release(item.continued.prompt_id)
        if items:
            self.tell_queue()
        return bool(items)

    async def _withdraw(self, prompt_ids: Sequence[str]) -> None:
        """Take prompts out of the queue; one that runs already is interrupted."""
        for prompt_id in prompt_ids:
            if not self.delete(prompt_id):
                await self.interrupt(prompt_id)

    async def _interrupt(self, engine: Engine, item: QueuedPrompt) -> bool:
        log.info("interrupting prompt %s", item.prompt_id)
        # It may be on its way to the engine's thread, or just over: no event of ours tells, so ask again.
        while item in self._queue.all_running:
            if engine.interrupt(item.prompt_id):
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False

    def tell_queue(self) -> None:
        """Send the current length of the queue to every client."""
        self._clients.send(messages.status(self._queue.remaining))

    def greeting(self, sid: str) -> list[Message]:
        """Return the first messages to a client: the queue, and the current node of a running prompt of its own."""
        own = [relay.current_node for relay in self._relays if relay.client_id == sid]
        nodes: list[Message] = [("executing", {"node": node}) for node in own if node is not None]
        return [messages.status(self._queue.remaining, sid), *nodes[-1:]]

    @property
    def computing(self) -> str | None:
        """The prompt that computes, for whoever asks which one hangs: the one that has the turn, or began first."""
        engine = self._start.engine_now()
        found = None if engine is None else engine.runs.prompt_with_turn
        first = self._queue.running
        if any(item.prompt_id == found for item in self._queue.all_running):
            return found
        return None if first is None else first.prompt_id

    def node_of(self, prompt_id: str | None) -> str | None:
        """Return the current node of a running prompt."""
        return next((relay.current_node for relay in self._relays if relay.prompt_id == prompt_id), None)

    @property
    def total_events(self) -> int:
        """Grows whenever a thread of the engine reports anything."""
        return self.num_events + sum(relay.num_events for relay in self._relays)

    def seconds_since_event(self) -> float | None:
        """Return the seconds since a running prompt last reported; None while none runs."""
        last = max((relay.last_event_seconds for relay in self._relays), default=None)
        return None if last is None else round(time.monotonic() - last, 3)

    async def run_forever(self) -> None:
        """Start prompts as there is place for them; one that only saves its files takes none.

        Where they run one after the other, so do their ends.
        """
        tasks: set[asyncio.Task[None]] = set()
        before: asyncio.Task[None] | None = None
        try:
            while True:
                item = self._queue.start_next()
                if item is None:
                    self._has_work.clear()
                    await self._has_work.wait()
                    continue
                relay = RunRelay(item, self._clients, asyncio.get_running_loop(), self._figures)
                run = asyncio.create_task(self._run_to_end(item, relay, before if self._queue.at_once == 1 else None))
                before = run
                for task in (run, asyncio.create_task(self._let_next_start(item, relay, run))):
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()

    async def _let_next_start(self, item: QueuedPrompt, relay: RunRelay, run: asyncio.Task[None]) -> None:
        past_nodes = asyncio.create_task(relay.is_past_nodes.wait())
        try:
            await asyncio.wait((run, past_nodes), return_when=asyncio.FIRST_COMPLETED)
        finally:
            past_nodes.cancel()
        if not run.done():
            self._queue.save(item)
            self._has_work.set()

    async def _run_to_end(self, item: QueuedPrompt, relay: RunRelay, before: asyncio.Task[None] | None) -> None:
        entry = await self._run(item, relay, before)
        if before is not None:
            await before
        continued_by = self._continued_by.pop(item.prompt_id, [])
        if entry.status == "success":
            entry = replace(entry, continued_by=continued_by)
        else:  # what it began does not go on
            await self._withdraw(continued_by)
        self._queue.finish(item)
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
            self._relays.append(relay)
            self.tell_queue()
            relay.open()
            result = await asyncio.wrap_future(future)
        except Exception:  # noqa: BLE001 - one run
            log.exception("prompt %s broke the engine", item.prompt_id)
            return HistoryEntry(item, {}, {}, "error", relay.history_messages)
        finally:
            relay.open()
            self.num_events += relay.num_events
            self._relays = [other for other in self._relays if other is not relay]
        ends.info("prompt %s: %s in %.3f s", item.prompt_id, result.status, time.monotonic() - began_seconds)
        is_good = result.status == "success"
        return HistoryEntry(
            item, result.outputs, result.meta, "success" if is_good else "error", relay.history_messages
        )

    def _request(self, item: QueuedPrompt) -> RunRequest:
        # Not imported above: darkroom.engine.engine imports torch, and the server answers before that is there.
        from darkroom.engine.engine import RunRequest

        return RunRequest(
            prompt_id=item.prompt_id,
            prompt=item.prompt,
            outputs=item.outputs,
            extra_data=item.extra_data,
            wants_previews=self._clients.is_listening(item.client_id),
            **_continuation(item),
        )


def _continuation(item: QueuedPrompt) -> dict[str, Any]:
    """Return the fields of a run's request that a prompt has which continues another one."""
    link = item.continued
    return {} if link is None else {"continues": link.prompt_id, "part": link.part, "passing": link.changed}
