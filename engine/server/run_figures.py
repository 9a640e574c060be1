"""Counts of runs, nodes and sampling steps since the engine's start, taken from the events of every run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from darkroom.contract.errors import EngineError
from darkroom.engine.events import (
    Event,
    NodeFinished,
    NodeProgress,
    NodesCached,
    NodeStarted,
    RunFailed,
    RunInterrupted,
    RunSucceeded,
)

SAMPLER = "Sampler"  # part of the class name of every node that samples: its progress counts steps


class RunFigures:
    """Counters of one engine. `on_event` is called on the thread that reports the event, everything else anywhere.

    The first step of a node is not timed: the time before it includes loading the model.
    """

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self.runs = dict.fromkeys(("success", "error", "interrupted"), 0)
        self.failures = dict.fromkeys(sorted(_codes(EngineError)), 0)
        self.nodes = dict.fromkeys(("executed", "cached"), 0)
        self.num_steps = 0
        self.num_timed_steps = 0
        self.step_seconds = 0.0
        self.steps_per_second = 0.0  # of the last sampling node
        self._clock_seconds = clock_seconds
        self._node = ""
        self._value = 0.0
        self._at_seconds = 0.0
        self._timed_steps = 0.0  # of the current node
        self._timed_seconds = 0.0

    def on_event(self, event: Event, prompt: Mapping[str, Any]) -> None:
        """Count an event of a run; `prompt` names the class of each node."""
        match event:
            case NodeProgress():
                self._on_progress(event, prompt)
            case NodeStarted():
                self.nodes["executed"] += 1
            case NodeFinished():
                self._end_node()
            case NodesCached():
                self.nodes["cached"] += len(event.node_ids)
            case RunSucceeded():
                self.runs["success"] += 1
            case RunInterrupted():
                self.runs["interrupted"] += 1
                self._end_node()
            case RunFailed():
                self.runs["error"] += 1
                self._end_node()
                self.count_failure(event.code)

    def count_failure(self, code: str) -> None:
        """Count a failure by an error's code; a code that is not the engine's own is a node's."""
        self.failures[code if code in self.failures else "node_failed"] += 1

    def _on_progress(self, event: NodeProgress, prompt: Mapping[str, Any]) -> None:
        if SAMPLER not in str(prompt.get(event.node.display_node_id, {}).get("class_type", "")):
            return
        if not isinstance(event.value, int | float) or not math.isfinite(event.value):  # a pack may report anything
            return
        now = self._clock_seconds()
        is_first = self._node != event.node.real_node_id or event.value <= self._value
        steps = max(0, round(event.value if is_first else event.value - self._value))
        self.num_steps += steps
        if not is_first:
            seconds = now - self._at_seconds
            self.num_timed_steps += steps
            self.step_seconds += seconds
            self._timed_steps += steps
            self._timed_seconds += seconds
        self._node, self._value, self._at_seconds = event.node.real_node_id, event.value, now

    def _end_node(self) -> None:
        if self._timed_seconds > 0:
            self.steps_per_second = self._timed_steps / self._timed_seconds
        self._node, self._value, self._timed_steps, self._timed_seconds = "", 0.0, 0.0, 0.0


def _codes(kind: type[EngineError]) -> Iterable[str]:
    """Yield the code of every error without subclasses."""
    inner = kind.__subclasses__()
    if not inner:
        yield kind.code
    for child in inner:
        yield from _codes(child)
