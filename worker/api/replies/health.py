"""Replies about the state of the worker: liveness, readiness, health."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from darkroom.worker.api.replies.jobs import QueueSizes
from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.engines.watch import EngineState


class Liveness(Reply):
    """The process responds."""

    status: Literal["alive"]


class CheckEntry(Reply):
    """One check of `darkroom doctor`, with what to do about it."""

    name: str
    status: Literal["good", "warning", "failed", "skipped"]
    detail: str
    remedy: str


class BrokerState(Reply):
    """Connection to the broker from which jobs come."""

    broker: str = Field(description="Kind and address")
    state: Literal["connected", "unreachable"]
    reason: str | None = None
    held: int = Field(description="Jobs of the broker that this worker holds")


class DatabaseState(Reply):
    """Connection to a database server."""

    database: str = Field(description="Address and database")
    state: Literal["connected", "unreachable"]
    reason: str | None = None


class Readiness(Reply):
    """True state of the readiness probe; `reason` says why the worker takes no jobs."""

    status: Literal["ready", "not ready"]
    reason: str | None = None
    checks: list[CheckEntry] | None = None
    broker: BrokerState | None = None
    database: DatabaseState | None = None


class Loss(Reply):
    """The last end of an engine's process."""

    reason: str
    message: str


class Backend(Reply):
    """One engine."""

    url: str
    healthy: bool
    state: EngineState
    prompts: int
    pid: int | None
    heartbeat_age_seconds: float | None
    running: str | None
    node: str | None
    seconds_without_progress: float | None
    memory_bytes: int | None
    restarts: dict[str, int]
    last_loss: Loss | None


class FallbackHealth(Reply):
    """The fallback engine. `engine` None: it is not started, as nothing has needed it for a while."""

    state: EngineState | Literal["idle"]
    starts: int
    engine: Backend | None


class GpuHealth(Reply):
    """State of the accelerators."""

    unrecoverable: bool
    reason: str | None


class FloorState(Reply):
    """Free amount of a resource, and the floor under which no job is accepted."""

    free_bytes: int | None
    floor_bytes: int
    low: bool


class ManifestCounts(Reply):
    """Files of `models.toml` and packs of `packs.toml`, by their state, such as `good` or `missing`."""

    models: dict[str, int]
    packs: dict[str, int]


class Health(Reply):
    """Health of the worker. `problems` lists why it should be replaced."""

    status: Literal["healthy", "degraded", "unhealthy"]
    version: str = Field(description="Version of the program")
    cache_type: str
    queues: QueueSizes
    backends_healthy: str
    gpu: GpuHealth
    backends: list[Backend]
    ready: bool
    restarts: int
    disk: FloorState
    memory: FloorState
    problems: list[str] | None = None
    broker: BrokerState | None = None
    database: DatabaseState | None = None
    fallback: FallbackHealth | None = Field(default=None, description="Where FALLBACK_ENGINE is set")
    manifest: ManifestCounts | None = Field(default=None, description="Where a manifest asks for something")
