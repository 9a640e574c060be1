"""Replies about the worker: modifiers, benchmark, engines, checkpoints."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from darkroom.worker.api.replies.health import Backend
from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.qualification.state import VERDICTS


class ModifierEntry(Reply):
    """One modifier, or a file that defines none, with the reason in `error`."""

    name: str
    source: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, alias="schema", description="JSON schema")
    example: dict[str, Any] | None = None
    error: str | None = None


class Benchmark(Reply):
    """Report of the last benchmark; docs/benchmark.md has every field."""

    verdict: Annotated[str, Field(json_schema_extra={"enum": list(VERDICTS)})]
    reason: str | None = None
    error: str | None = None
    is_running: bool
    num_tries: int
    next_try_in_seconds: float | None
    phases: dict[str, float]
    its_per_second: float | None = None
    workload_per_second: float | None = None


class Device(Reply):
    """Device of an engine, by the engine's name of it."""

    name: str
    memory_bytes: int | None


class CheckpointEntry(Reply):
    """Checkpoint that the engines have. `family` is null where it is not known."""

    name: str
    family: str | None
    size_bytes: int | None


class CallerEntry(Reply):
    """The caller's key and its scopes; no scopes for a caller that needs a key."""

    key_name: str
    scopes: list[str]


class MeasuredSpeed(Reply):
    """Figures of the last benchmark; null without one."""

    verdict: str | None
    its_per_second: float | None
    seconds_per_picture: float | None
    width_px: int | None
    height_px: int | None
    steps: int | None
    model: str | None


class JobPace(Reply):
    """Pace of the last jobs that made files: an engine's seconds for each, without waiting; null without a job."""

    num_jobs: int
    seconds_per_file: float | None


class WorkerInfo(Reply):
    """Devices, checkpoints and speed of a worker, and the scopes of the caller there."""

    version: str
    is_ready: bool
    devices: list[Device]
    checkpoints: list[CheckpointEntry]
    is_demo_only: bool = Field(description="No checkpoint is installed but the built-in demo model")
    benchmark: MeasuredSpeed
    jobs: JobPace
    price_per_hour: float | None = Field(description="`WORKER_PRICE_PER_HOUR`, null where it is not set")
    caller: CallerEntry


class EngineEntry(Backend):
    """State of an engine, and the figures of its model memory (`GET /api/v1/memory` of the engine)."""

    memory: dict[str, Any] | None
