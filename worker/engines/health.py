"""Problems of the worker, from facts about its progress. Pure: `/health` gathers the facts.

A problem means that the worker should be replaced, or that it makes no progress. An engine that is being restarted is
not a problem: jobs wait for it until it is up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from darkroom.worker.engines.watch import EngineReport, EngineState

SERVING = (EngineState.UP, EngineState.DRAINING, EngineState.STOPPING)
PROBLEM_STATES = {
    EngineState.STARTING: "has not answered yet",
    EngineState.DOWN: "does not answer",
    EngineState.FAILED: "does not come back",
}


@dataclass(frozen=True, slots=True)
class Floor:
    """Free amount of a resource and its floor, in bytes; None: not known."""

    name: str
    free_bytes: int | None
    least_bytes: int

    @property
    def is_reached(self) -> bool:
        return self.free_bytes is not None and self.free_bytes < self.least_bytes

    def as_json(self) -> dict[str, object]:
        return {"free_bytes": self.free_bytes, "floor_bytes": self.least_bytes, "low": self.is_reached}


def find_worker_problems(
    engines: Sequence[EngineReport], floors: Sequence[Floor], wrong_inside: Sequence[str], silence_seconds: float
) -> list[str]:
    """Return one line for each problem; an empty list means healthy."""
    problems = list(wrong_inside)
    is_serving = any(engine.state in SERVING for engine in engines)
    for engine in engines:
        if engine.state is EngineState.STARTING and is_serving:
            continue  # starting takes longer than the other states
        if engine.state in PROBLEM_STATES:
            problems.append(f"the engine at {engine.url} {PROBLEM_STATES[engine.state]}")
        elif engine.is_stuck:
            problems.append(
                f"node {engine.node_id} of {engine.running} has made no progress for {engine.quiet_seconds:.0f} s"
            )
        elif engine.heartbeat_age_seconds is not None and engine.heartbeat_age_seconds > silence_seconds:
            problems.append(f"the engine at {engine.url} was last heard {engine.heartbeat_age_seconds:.0f} s ago")
    problems += [f"{floor.name} is below its floor" for floor in floors if floor.is_reached]
    return problems


def fallback_as_json(engine: EngineReport | None, num_starts: int) -> dict[str, object]:
    """Return the state of the fallback; None: it is not started."""
    return {
        "state": "idle" if engine is None else engine.state.value,
        "starts": num_starts,
        "engine": None if engine is None else engine_as_json(engine),
    }


def engine_as_json(engine: EngineReport) -> dict[str, object]:
    loss = engine.last_loss
    return {
        "url": engine.url,
        "healthy": engine.state in SERVING and not engine.is_stuck,
        "state": engine.state.value,
        "prompts": engine.num_prompts,
        "pid": engine.pid,
        "heartbeat_age_seconds": engine.heartbeat_age_seconds,
        "running": engine.running,
        "node": engine.node_id,
        "seconds_without_progress": engine.quiet_seconds,
        "memory_bytes": engine.memory_bytes,
        "restarts": {reason.value: count for reason, count in engine.restarts.items()},
        "last_loss": None if loss is None else {"reason": loss.reason.value, "message": loss.sentence},
    }
