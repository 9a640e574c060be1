"""Heartbeat of an engine, and the loss that it indicates. Pure.

`GET /api/v1/heartbeat` is answered by the event loop of the engine's server and has the counts of the GPU thread, which
distinguishes an engine that answers and makes no progress from one that works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from darkroom.worker.engines.loss import LossReason

MIN_MISSED = 2


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """State that an engine reports. `quiet_seconds`: since the running prompt's last report; None while none runs."""

    running: str | None = None
    node_id: str | None = None
    num_events: int = 0
    quiet_seconds: float | None = None
    num_waiting: int = 0
    is_built: bool = True

    @staticmethod
    def of(answer: Mapping[str, Any]) -> Heartbeat:
        """Read an answer. Raises TypeError, ValueError or OverflowError for values of another type."""
        running, node_id, quiet = answer.get("running"), answer.get("node"), answer.get("seconds_since_event")
        if "running" not in answer:
            raise ValueError("no heartbeat")
        return Heartbeat(
            running=None if running is None else str(running),
            node_id=None if node_id is None else str(node_id),
            num_events=int(answer.get("events") or 0),
            quiet_seconds=None if quiet is None else float(quiet),
            num_waiting=int(answer.get("waiting") or 0),
            is_built=bool(answer.get("engine_ready", True)),
        )


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """Limits of silence. `stall_seconds`: without progress within a node. `silence_seconds`: without any reply."""

    stall_seconds: float
    silence_seconds: float


def find_loss(last: Heartbeat, limits: HeartbeatLimits, *, silent_seconds: float, num_missed: int) -> LossReason | None:
    """Return the reason why an engine counts as lost, None while it does not.

    `last` is its last heartbeat, `silent_seconds` how old that is, and `num_missed` how many were asked for in vain
    since.
    """
    if num_missed:
        is_lost = num_missed >= MIN_MISSED and silent_seconds > limits.silence_seconds
        return LossReason.UNRESPONSIVE if is_lost else None
    if last.running is None or last.quiet_seconds is None:
        return None
    return LossReason.HUNG if last.quiet_seconds > limits.stall_seconds else None
