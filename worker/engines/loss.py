"""Losses of an engine: their reasons, the errors of the jobs concerned, and the budget of restarts. Pure.

A loss while a job's prompt ran counts as caused by that prompt unless another cause is known: it costs the engine no
restart.
"""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.errors import (
    DeviceLost,
    EngineCrashed,
    EngineHung,
    EngineOutOfMemory,
    EngineUnreachable,
    WorkerError,
)

OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that a process gets from others; a fault of its own raises SIGSEGV, SIGABRT and the like."""

STOPPED_CODE = 0
"""Exit code of an engine that was asked to stop (SIGTERM)."""

OWN_MEMORY_SHARE = 0.5
"""Share of the machine's memory from which on an engine is the cause of its end where memory ran out."""

START_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=30.0)


class LossReason(StrEnum):
    CRASHED = "crashed"  # the process ended by itself
    HUNG = "hung"  # a node made no progress for too long
    UNRESPONSIVE = "unresponsive"  # the server's loop answered nothing for too long
    STOP_IGNORED = "stop_ignored"  # a cancelled prompt went on for too long
    DEVICE_LOST = "device_lost"  # the accelerator's context is poisoned: no later prompt can run
    OUT_OF_MEMORY = "out_of_memory"  # the kernel killed it for memory
    RECYCLED = "recycled"  # on purpose, between jobs: it had grown over the memory limit
    GONE = "gone"  # a foreign engine does not answer, or no longer has the prompt

    @property
    def is_hang(self) -> bool:
        """True if the process still ran: the prompts it had would make the next one hang, too."""
        return self in (LossReason.HUNG, LossReason.UNRESPONSIVE, LossReason.STOP_IGNORED)


@dataclass(frozen=True, slots=True)
class Loss:
    """End of an engine's process. `code` is its exit code, negative for a signal's number.

    `prompt_id` is the prompt that caused it; None: the engine itself, or unknown. `is_outside`: neither caused it, and
    `prompt_id` is what ran.
    """

    reason: LossReason
    code: int | None = None
    last_words: str = ""
    prompt_id: str | None = None
    is_outside: bool = False

    @property
    def is_planned(self) -> bool:
        return self.reason is LossReason.RECYCLED

    @property
    def sentence(self) -> str:
        match self.reason:
            case LossReason.CRASHED:
                return f"The engine's process ended ({_exit_name(self.code)})"
            case LossReason.HUNG:
                return "The engine made no progress for too long and was replaced"
            case LossReason.UNRESPONSIVE:
                return "The engine answered nothing for too long and was replaced"
            case LossReason.STOP_IGNORED:
                return "A cancelled prompt went on for too long and the engine was replaced"
            case LossReason.DEVICE_LOST:
                return "The device failed and the engine was replaced"
            case LossReason.OUT_OF_MEMORY:
                return "The machine ran out of memory and the engine's process was killed"
            case LossReason.RECYCLED:
                return "The engine was replaced to give back memory"
            case LossReason.GONE:
                return "The engine was lost"


def reason_of_exit(code: int, num_oom_kills: int) -> LossReason:
    """Return the reason for a process's end.

    `num_oom_kills` is the number of processes that the kernel killed for memory while this one lived.
    """
    if code == -signal.SIGKILL and num_oom_kills > 0:
        return LossReason.OUT_OF_MEMORY
    return LossReason.CRASHED


def is_outside(reason: LossReason, code: int, memory_bytes: int | None, total_bytes: int | None) -> bool:
    """Return True if neither the engine nor its prompt caused the end of its process.

    That is a signal that others send, or memory that others had taken: `memory_bytes` are the engine's own shortly
    before, of `total_bytes` of the machine. A kill by the kernel is not counted everywhere, so one of an engine with
    much memory is never from outside.
    """
    has_much = bool(memory_bytes and total_bytes and memory_bytes >= OWN_MEMORY_SHARE * total_bytes)
    if reason is LossReason.OUT_OF_MEMORY:
        return memory_bytes is not None and total_bytes is not None and not has_much
    is_ended = code == STOPPED_CODE or -code in OUTSIDE_SIGNALS
    return reason is LossReason.CRASHED and is_ended and not has_much


def error_of_loss(loss: Loss, attempts: int, node_id: str | None, class_type: str | None) -> WorkerError:
    """Return the error of a job that lost its engine on its last attempt, in this node (None: before its first).

    One that made the engine hang has no second attempt.
    """
    kinds: dict[LossReason, type[WorkerError]] = {
        LossReason.CRASHED: EngineCrashed,
        LossReason.HUNG: EngineHung,
        LossReason.UNRESPONSIVE: EngineHung,
        LossReason.STOP_IGNORED: EngineHung,
        LossReason.DEVICE_LOST: DeviceLost,
        LossReason.OUT_OF_MEMORY: EngineOutOfMemory,
    }
    kind = kinds.get(loss.reason, EngineUnreachable)
    where = "" if node_id is None else f" in {class_type} (node {node_id})"
    if loss.reason.is_hang:
        message = f"The engine hung during this job{where}, which is not run again: {loss.sentence}"
    else:
        times = "again and again, by causes outside of it," if loss.is_outside else "twice"
        message = f"The engine was lost {times} during this job{where}; the last time: {loss.sentence}"
    about: dict[str, Any] = {} if node_id is None else {"node_id": node_id, "class_type": class_type}
    return kind(message, attempts=attempts, reason=loss.reason.value, **about)


def backoff_seconds(num_failed_starts: int) -> float:
    """Return the pause before the next start after a number of consecutive failed starts."""
    return START_BACKOFF.seconds(num_failed_starts + 1)


class CrashStreak:
    """Consecutive jobs under which an engine's process ended, with no other job completed between.

    One job counts once, however often it is tried. More than `max_jobs` of them indicate that the engine is at fault.
    """

    def __init__(self, max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._jobs: set[str] = set()

    def add(self, loss: Loss) -> bool:
        """Count a loss. True when the engine has to prove itself: the count begins anew then."""
        if loss.prompt_id is None or loss.is_planned or loss.is_outside or loss.reason.is_hang:
            return False
        self._jobs.add(job_of_prompt(loss.prompt_id))
        if len(self._jobs) <= self._max_jobs:
            return False
        self._jobs.clear()
        return True

    def end(self) -> None:
        """End the streak: a prompt has succeeded."""
        self._jobs.clear()


def job_of_prompt(prompt_id: str) -> str:
    """Return the id of the job whose attempt a prompt is."""
    return prompt_id.rpartition("-")[0] or prompt_id


class RestartBudget:
    """Budget of restarts after losses of one cause: at most `max_restarts` within any `window_seconds`."""

    def __init__(self, max_restarts: int, window_seconds: float) -> None:
        self.max_restarts = max_restarts
        self.window_seconds = window_seconds
        self._times: deque[float] = deque()

    def take(self, now_seconds: float) -> bool:
        """Take one restart from the budget. Return False when none is left."""
        while self._times and self._times[0] <= now_seconds - self.window_seconds:
            self._times.popleft()
        if len(self._times) >= self.max_restarts:
            return False
        self._times.append(now_seconds)
        return True


def _exit_name(code: int | None) -> str:
    if code is None:
        return "no exit code"
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
