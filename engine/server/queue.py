"""Prompts that wait, in order, and those that run; beside them some that are only saving their files.

Owned by the server's event loop: no locks. A lower `number` goes first; equal numbers in order of arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from darkroom.contract.wire import PARTNER_KEYS


@dataclass(frozen=True, slots=True)
class Continuation:
    """Link of a prompt to the one that it continues. `part` counts the prompts before it, from 1.

    `changed` are the nodes whose inputs differ: the state that they hold counts the parts.
    """

    prompt_id: str
    part: int
    changed: frozenset[str]


@dataclass(frozen=True, slots=True)
class QueuedPrompt:
    """One accepted prompt. `number` as the client sees it, `outputs` the output nodes that can run.

    `continued` describes the prompt whose node queued this one; None for a client's.
    """

    number: float
    prompt_id: str
    prompt: Mapping[str, Any]
    extra_data: Mapping[str, Any]
    outputs: tuple[str, ...]
    continued: Continuation | None = None

    @property
    def client_id(self) -> str | None:
        client_id = self.extra_data.get("client_id")
        return client_id if isinstance(client_id, str) else None

    def as_json(self) -> list[Any]:
        """Return ComfyUI's five-element form for `/queue` and `/history`, without credentials of `extra_data`."""
        shown = {key: value for key, value in self.extra_data.items() if key not in PARTNER_KEYS}
        return [self.number, self.prompt_id, self.prompt, shown, list(self.outputs)]


class PromptQueue:
    """Sole holder of waiting prompts and of the running ones.

    `at_once` prompts run at a time, and as many others may be saving their files.
    """

    def __init__(self, at_once: int = 1) -> None:
        self.at_once = at_once
        self._most_at_once = at_once  # so far
        self._heap: list[tuple[float, int, QueuedPrompt]] = []
        self._arrivals = 0
        self._running: list[QueuedPrompt] = []  # in the order in which they began
        self._saving: set[str] = set()  # ids of those that only save

    def allow(self, at_once: int) -> None:
        """Run so many prompts at a time from now on. Those that run go on."""
        self.at_once = at_once
        self._most_at_once = max(self._most_at_once, at_once)

    @property
    def running(self) -> QueuedPrompt | None:
        """The one that began first."""
        return self._running[0] if self._running else None

    @property
    def all_running(self) -> list[QueuedPrompt]:
        return list(self._running)

    @property
    def computing(self) -> list[QueuedPrompt]:
        """Running prompts that have nodes to run."""
        return [item for item in self._running if item.prompt_id not in self._saving]

    @property
    def remaining(self) -> int:
        """Waiting prompts and the running ones."""
        return len(self._heap) + len(self._running)

    def waiting(self) -> list[QueuedPrompt]:
        """Return the waiting prompts in the order in which they will run."""
        return [item for _, _, item in sorted(self._heap, key=lambda entry: entry[:2])]

    def put(self, item: QueuedPrompt) -> None:
        heapq.heappush(self._heap, (item.number, self._arrivals, item))
        self._arrivals += 1

    def start_next(self) -> QueuedPrompt | None:
        """Make the first waiting prompt run. None when nothing waits, or there is no place for another one."""
        num_saving = min(len(self._saving), self.at_once)
        if len(self._running) - num_saving >= self.at_once or not self._heap:
            return None
        self._running.append(heapq.heappop(self._heap)[2])
        return self._running[-1]

    def save(self, item: QueuedPrompt) -> None:
        """Record that a running prompt only saves files from here on: another one may start."""
        if item in self._running:
            self._saving.add(item.prompt_id)

    def finish(self, item: QueuedPrompt) -> None:
        """Remove a running prompt that has ended."""
        self._running = [running for running in self._running if running is not item]
        self._saving.discard(item.prompt_id)

    def clear(self) -> None:
        """Forget every waiting prompt; the running one goes on."""
        self._heap.clear()

    def delete(self, prompt_id: str) -> bool:
        """Forget one waiting prompt. False when none of that id waits."""
        for index, (_, _, item) in enumerate(self._heap):
            if item.prompt_id == prompt_id:
                self._heap.pop(index)
                heapq.heapify(self._heap)
                return True
        return False

    def check_integrity(self) -> None:
        """Raise AssertionError when the heap is out of order or the running prompt also waits."""
        for index in range(1, len(self._heap)):
            assert self._heap[(index - 1) // 2][:2] <= self._heap[index][:2]
        assert all(item is not running for _, _, item in self._heap for running in self._running)
        assert self._saving <= {item.prompt_id for item in self._running}
        assert len(self._running) <= self._most_at_once + min(len(self._saving), self._most_at_once)
