"""Spans of jobs: one for the job, below it one for each stage, and below a run one for each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from darkroom.worker.json.values import object_at
from darkroom.worker.observe.tracing import Attribute, PassingTracer, Span, Tracer
from darkroom.worker.storage.job import Job, Stage

SPAN_NAMES: Final[Mapping[Stage, str]] = {
    Stage.QUEUED: "job queued",
    Stage.FETCHING: "job inputs",
    Stage.WAITING: "job wait",
    Stage.LOW_MEMORY_RETRY: "job wait",
    Stage.RUNNING: "job run",
    Stage.DELIVERING: "job delivery",
}


@dataclass(slots=True)
class _Open:
    """Open spans of one job."""

    whole: Span
    stage: Stage | None = None
    of_stage: Span | None = None
    of_node: Span | None = None


class JobSpans:
    """Open spans of the jobs that have not ended. Called at every change of a job and every message of its run."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or PassingTracer()
        self._jobs: dict[str, _Open] = {}

    def traceparent_of(self, job: Job) -> str:
        """Return the context for what the job does now; that of its request when it has ended."""
        held = self._jobs.get(job.id)
        if held is None:
            return job.request.traceparent
        return (held.of_stage or held.whole).traceparent

    def changed(self, job: Job) -> None:
        """Begin and end spans by the job's stage."""
        if job.state.is_terminal:
            return
        held = self._jobs.get(job.id)
        if held is None:
            about: dict[str, Attribute] = {"darkroom.request_id": job.id, "darkroom.modifier": job.request.modifier}
            held = self._jobs[job.id] = _Open(self._tracer.start("job", job.request.traceparent, about))
        if held.stage is job.stage:
            return
        _end_stage(held)
        held.stage, name = job.stage, SPAN_NAMES.get(job.stage)
        if name is not None:
            attributes: dict[str, Attribute] = {"darkroom.attempt": job.attempt, "darkroom.prompt_id": job.prompt_id}
            held.of_stage = self._tracer.start(name, held.whole.traceparent, attributes)

    def on_message(self, job: Job, kind: str, data: Mapping[str, Any]) -> None:
        """Begin and end the spans of nodes by a message of the engine."""
        held = self._jobs.get(job.id)
        if held is None or held.of_stage is None or kind != "executing":
            return
        _end_node(held)
        node_id = data.get("node")
        if node_id is not None:
            shown = str(data.get("display_node") or node_id)
            class_type = str(object_at(job.prompt, shown).get("class_type", "unknown"))
            about: dict[str, Attribute] = {"darkroom.node_id": str(node_id), "darkroom.node_class": class_type}
            held.of_node = self._tracer.start(f"node {class_type}", held.of_stage.traceparent, about)

    def ended(self, job: Job) -> None:
        """End all spans of a job that has ended."""
        held = self._jobs.pop(job.id, None)
        if held is None:
            return
        error = "" if job.failure is None else job.failure.code
        _end_stage(held, error)
        about: dict[str, Attribute] = {"darkroom.state": job.state.value, "darkroom.outputs": len(job.outputs)}
        held.whole.end({**about, "darkroom.attempt": job.attempt}, error=error)

    def close(self) -> None:
        """End the spans of jobs that are left for the next start."""
        for held in self._jobs.values():
            _end_stage(held)
            held.whole.end({"darkroom.state": "deferred"})
        self._jobs.clear()


def _end_stage(held: _Open, error: str = "") -> None:
    _end_node(held, error)
    if held.of_stage is not None:
        held.of_stage.end(error=error)
        held.of_stage = None


def _end_node(held: _Open, error: str = "") -> None:
    if held.of_node is not None:
        held.of_node.end(error=error)
        held.of_node = None
