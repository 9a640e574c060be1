"""Services that request handlers use, created once by `worker/app/assembly.py` and passed on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastapi import FastAPI

from modifiers.registry import ModifierRegistry
from worker.autoscaler.platform import Platform
from worker.doctor.check import Check
from worker.engines.fleet import EngineFleet
from worker.engines.health import Floor
from worker.engines.interface import EngineInterface
from worker.engines.pool import EnginePool
from worker.guard.bodies import Bodies
from worker.guard.identity.browser_sessions import BrowserSessions
from worker.guard.identity.caller import Identity
from worker.guard.listener.connections import ConnectionTable
from worker.guard.rate_limits import RateLimits
from worker.inputs.uploads import UploadedFiles
from worker.jobs.admission import Admission, Gate
from worker.jobs.caller_quota import CallerQuota
from worker.jobs.job_models import JobModels
from worker.jobs.manifest_state import ManifestState
from worker.jobs.outbox import Outbox
from worker.jobs.pipeline.pipeline import Pipeline
from worker.jobs.protocols import JobInputs
from worker.jobs.queue_info import QueueInfo
from worker.jobs.redelivery import Redelivery
from worker.jobs.removal import JobRemoval
from worker.jobs.wait_estimate import RunClock
from worker.observe.http_metrics import HttpMetrics
from worker.observe.metrics import Metrics
from worker.observe.scrape import Scrape
from worker.observe.tracing import Tracer
from worker.outputs.links import LinkSigner
from worker.outputs.targets.target import OutputTargets
from worker.prompts.rules import PromptRules
from worker.qualification.state import Qualification
from worker.settings.engines import SupervisionConfig
from worker.settings.jobs import CallerLimits, QueueLimits
from worker.settings.outputs import OutputConfig, WebhookConfig
from worker.sources.intake import Intake
from worker.storage.asset_store import AssetStore
from worker.storage.store import JobStore
from worker.storage.workflow_store import WorkflowStore


class RequestGuard(Protocol):
    def check(
        self, peer: str | None, headers: Sequence[tuple[str, str]], *, has_vast_envelope: bool = False
    ) -> Identity:
        """Identify the caller of a request. Raises Unauthorized, Forbidden."""
        ...


class PlatformRoutes(Protocol):
    """Routes that a platform's clients use."""

    def attach(self, app: FastAPI, services: Services) -> None:
        """Add the routes to an application."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    store: JobStore
    pool: EnginePool
    fleet: EngineFleet
    pipeline: Pipeline
    admission: Admission
    gate: Gate
    inputs: JobInputs
    models: JobModels
    manifest_state: ManifestState
    uploads: UploadedFiles
    modifiers: ModifierRegistry
    links: LinkSigner
    metrics: Metrics
    http_metrics: HttpMetrics
    scrape: Scrape
    tracer: Tracer
    examine: Callable[[], Awaitable[list[Check]]]
    guard: RequestGuard
    qualification: Qualification
    outputs: OutputConfig
    webhook: WebhookConfig
    limits: QueueLimits
    supervision: SupervisionConfig
    floors: Callable[[], list[Floor]]
    prompt_rules: PromptRules
    workflows: WorkflowStore
    assets: AssetStore
    caller_limits: CallerLimits
    caller_rates: RateLimits
    caller_quota: CallerQuota
    removal: JobRemoval
    redelivery: Redelivery
    bodies: Bodies
    connections: ConnectionTable
    hsts_seconds: int
    check_webhook_url: Callable[[str], None]
    targets: OutputTargets
    platform: Platform
    queue_info: QueueInfo
    metrics_are_open: bool
    outbox: Outbox
    run_clock: RunClock
    sessions: BrowserSessions
    interface: EngineInterface | None  # None: FRONT_END is off
    has_access_log: bool = True
    price_per_hour: float = 0.0
    splits_requests: bool = False
    shows_folders: bool = True  # of this machine, in results
    intake: Intake | None = None  # of jobs from a broker
    platform_routes: PlatformRoutes | None = None
