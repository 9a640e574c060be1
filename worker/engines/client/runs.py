"""Runs: the prompts in flight at one engine, what its socket reports of them, and whose doing its loss is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.client.run import Run, at_nodes, sent
from darkroom.worker.engines.heartbeat import Heartbeat
from darkroom.worker.engines.loss import Loss, LossReason
from darkroom.worker.engines.preview_frames import PreviewFrame
from darkroom.worker.engines.stopping import StopRequests
from darkroom.worker.json.values import JsonObject

log = structlog.get_logger("engine.client")


class Runs:
    """Prompts of ours that one engine has, in the order in which they were sent; `stops` are those asked to stop.

    `num_sent` is the number of prompts sent since the engine's start.
    """

    def __init__(self, stops: StopRequests) -> None:
        self.num_sent = 0
        self.stops = stops
        self._runs: dict[str, Run] = {}
        self._faulty: str | None = None  # the prompt under which the device failed

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        """Add a run, before its prompt is sent."""
        self._runs[run.prompt_id] = run

    def count_sent(self) -> None:
        """Count a prompt that was submitted."""
        self.num_sent += 1

    def remove(self, prompt_id: str) -> None:
        """Remove a run that has ended or is not awaited any more."""
        self._runs.pop(prompt_id, None)

    def get(self, prompt_id: str) -> Run | None:
        """Return the run of a prompt, None for one that is not awaited."""
        return self._runs.get(prompt_id)

    @property
    def waiting(self) -> list[Run]:
        """Runs that have not begun, as far as is known."""
        return [run for run in self._runs.values() if run.started_at is None]

    def is_awaited(self, run: Run) -> bool:
        """Return True while a run has not ended, and no other one has its prompt's id."""
        return self._runs.get(run.prompt_id) is run

    def is_next(self, run: Run) -> bool:
        """Return True if no other prompt of ours is before this one there.

        Such a prompt may have begun before the engine reported it.
        """
        first = next(iter(sent(at_nodes(self._runs.values()))), None)
        return first is run and not self.stops.running

    def counted_from(self, run: Run, silent_since: float | None) -> float | None:
        """Return the start of a run's time limit; None: not yet.

        An engine that does not reply does not report the beginning of a prompt either: its silence then counts.
        """
        if run.started_at is not None:
            return run.started_at
        return silent_since if self.is_next(run) else None

    def heartbeat(self) -> Heartbeat:
        """Return the progress of the first prompt that runs, by its reports. For an engine that does not tell it."""
        first = next((run for run in at_nodes(self._runs.values()) if run.started_at is not None), None)
        if first is None or first.started_at is None:
            return Heartbeat(num_waiting=len(self._runs))
        last = max(first.started_at, first.reported_at or 0.0)
        quiet_seconds = asyncio.get_running_loop().time() - last
        return Heartbeat(running=first.prompt_id, quiet_seconds=quiet_seconds, num_waiting=len(self._runs) - 1)

    # what the socket reports

    def look_all(self) -> None:
        """Let every run be looked up in the history: messages may have been lost."""
        for run in self._runs.values():
            run.look()

    def on_message(self, kind: str, data: JsonObject) -> None:
        """Note a progress report, and pass it on to its run."""
        run = self._runs.get(str(data.get("prompt_id")))
        if run is None:
            return
        run.report(asyncio.get_running_loop().time())
        if kind == "execution_start" and run.started_at is None:
            run.started_at = asyncio.get_running_loop().time()
            run.wake.set()
        if kind == "darkroom_saving":
            run.is_past_nodes = True
            return
        if kind == "executing" and data.get("node") is None:
            run.is_past_nodes = True
            run.look()
        try:
            run.on_message(kind, data)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):  # a hint, from a node that may send anything
            log.warning("engine message invalid", kind=kind, prompt_id=run.prompt_id)

    def on_preview(self, frame: PreviewFrame) -> None:
        """Pass a preview on to its run. One that names no prompt belongs to the only one that has begun."""
        begun = [run for run in self._runs.values() if run.started_at is not None and not run.is_past_nodes]
        run = self._runs.get(frame.prompt_id) if frame.prompt_id else begun[0] if len(begun) == 1 else None
        if run is not None and run.on_preview is not None:
            run.on_preview(frame)

    # losses

    def mark_faulty(self, run: Run) -> None:
        """Record that the device failed under a run."""
        self._faulty = None if run.is_own else run.prompt_id

    def find_culprit(self, reason: LossReason, running: str | None = None) -> str | None:
        """Return the prompt of a job whose doing a loss of the engine is; None: the engine's own.

        `running`: the prompt that the engine itself named, as one that hangs and still answers does.
        """
        if reason is LossReason.RECYCLED:
            return None
        stopping, runs = self.stops.running, at_nodes(self._runs.values()) or list(self._runs.values())
        begun = [run for run in runs if run.started_at is not None]
        if reason is LossReason.HUNG and running is not None:
            found: str | None = running
        elif self._faulty is not None:
            found = self._faulty
        elif stopping:
            found = stopping[0].prompt_id
        else:
            found = next((run.prompt_id for run in (*reversed(begun), *sent(runs))), None)
        is_own = any(run.is_own for run in runs if run.prompt_id == found)
        return None if is_own else found

    def mark_lost(self, loss: Loss) -> None:
        """End every run with EngineLost: the engine's process has ended.

        Where no run is known to have begun, the first that was sent counts as begun, even while its sending was under
        way: the report of the beginning may be lost, too. The same goes for the first one behind a run whose nodes have
        all run. After a hang only the culprit counts as begun. Where the engine did not reply and another prompt was
        beside or behind the one known to run, either may be the cause; so may each of several that ran when the engine
        ended. A prompt whose sending was under way may have met an
        engine that was silent already.
        """
        runs = list(self._runs.values())
        begun = [run for run in runs if run.started_at is not None]
        culprits = [run for run in runs if run.prompt_id == loss.prompt_id]
        suspects: list[Run] = []
        if loss.reason.is_hang:
            suspects = self._suspects(culprits) if loss.reason is LossReason.UNRESPONSIVE else []
            begun = culprits
        elif not at_nodes(begun) and (culprits or loss.prompt_id is None):
            begun += sent(at_nodes(runs))[:1]
        elif loss.prompt_id is not None and {loss.prompt_id} < {
            loss.prompt_id,
            *(run.prompt_id for run in at_nodes(begun)),
        }:
            suspects = at_nodes(begun)
        if loss.is_outside:
            culprits, suspects = [], []
        for run in runs:
            run.lost = EngineLost(
                loss.sentence,
                was_running=run in begun,
                loss=loss,
                is_culprit=run in culprits and not suspects,
                is_suspect=run in suspects,
                is_bystander=run.started_at is not None and run not in begun,
            )
            run.wake.set()
        self.stops.clear()
        self._faulty = None
        self.num_sent = 0

    def _suspects(self, culprits: Sequence[Run]) -> list[Run]:
        """Return the runs one of which made the engine answer nothing; none where that is the culprit for certain."""
        if not culprits or not culprits[0].is_sent or self.stops.is_any_open:
            return list(culprits)
        beside = [run for run in at_nodes(self._runs.values()) if run.started_at is not None and run not in culprits]
        behind = [run for run in self._runs.values() if run.is_sent and run.started_at is None]
        others = [*beside, *behind[:1]]
        return [*culprits, *others] if others and culprits[0].started_at is not None else []
