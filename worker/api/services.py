"""Services that request handlers use, put together by `worker/app/services.py` and passed on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastapi import FastAPI

from darkroom.modifiers.registry import ModifierRegistry
from darkroom.worker.autoscaler.platform import Platform
from darkroom.worker.doctor.check import Check
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fleet import EngineFleet
from darkroom.worker.engines.health import Floor
from darkroom.worker.engines.interface import EngineInterface
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.guard.bodies import Bodies
from darkroom.worker.guard.identity.browser_sessions import BrowserSessions
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.listener.connections import ConnectionTable
from darkroom.worker.guard.rate_limits import RateLimits
from darkroom.worker.inputs.uploads import UploadedFiles
from darkroom.worker.jobs.admission import Admission, Gate
from darkroom.worker.jobs.asked_downloads import AskedDownloads
from darkroom.worker.jobs.caller_quota import CallerQuota
from darkroom.worker.jobs.job_models import JobModels
from darkroom.worker.jobs.manifest_state import ManifestState
from darkroom.worker.jobs.outbox import Outbox
from darkroom.worker.jobs.pipeline.pipeline import Pipeline
from darkroom.worker.jobs.protocols import JobInputs
from darkroom.worker.jobs.queue_info import QueueInfo
from darkroom.worker.jobs.redelivery import Redelivery
from darkroom.worker.jobs.removal import JobRemoval
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.observe.history_recorder import HistoryRecorder
from darkroom.worker.observe.http_metrics import HttpMetrics
from darkroom.worker.observe.metrics import Metrics
from darkroom.worker.observe.scrape import Scrape
from darkroom.worker.observe.tracing import Tracer
from darkroom.worker.outputs.links import LinkSigner
from darkroom.worker.outputs.targets.target import OutputTargets
from darkroom.worker.prompts.rules import PromptRules
from darkroom.worker.qualification.state import Qualification
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.settings.engines import SupervisionConfig
from darkroom.worker.settings.jobs import CallerLimits, QueueLimits
from darkroom.worker.settings.outputs import OutputConfig, WebhookConfig
from darkroom.worker.sources.intake import Intake
from darkroom.worker.storage.asset_store import AssetStore
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.workflow_store import WorkflowStore


class RequestGuard(Protocol):
    def check(
        self, peer: str | None, headers: Sequence[tuple[str, str]], *, has_vast_envelope: bool = False
    ) -> Identity:
        """Identify the caller of a request. Raises Unauthorized, Forbidden."""
        ...

    def named_scopes(self) -> Sequence[tuple[str, frozenset[Scope]]]:
        """Return the name and the scopes of every API key."""
        ...


class PlatformRoutes(Protocol):
    """Routes that a platform's clients use."""

    def attach(self, app: FastAPI, services: Services) -> None:
        """Add the routes to an application."""
        ...


@dataclass(frozen=True, slots=True)
class RequestServices:
    """Identification of callers, and reading and checking of requests, in workers and gateways alike."""

    guard: RequestGuard
    caller_limits: CallerLimits
    caller_rates: RateLimits
    bodies: Bodies
    modifiers: ModifierRegistry
    prompt_rules: PromptRules
    http_metrics: HttpMetrics
    metrics_are_open: bool = False


@dataclass(frozen=True, slots=True)
class JobServices:
    """Jobs from their admission to their end."""

    store: JobStore
    pipeline: Pipeline
    admission: Admission
    gate: Gate
    queue_info: QueueInfo
    run_clock: RunClock
    limits: QueueLimits
    intake: Intake | None = None
    """Intake of jobs from a broker; None without one."""


@dataclass(frozen=True, slots=True)
class EngineServices:
    """Engines, the machine that they run on, and ComfyUI's web interface of one of them."""

    pool: EnginePool
    fleet: EngineFleet
    supervision: SupervisionConfig
    floors: Callable[[], list[Floor]]
    qualification: Qualification
    sessions: BrowserSessions
    interface: EngineInterface | None
    """None: FRONT_END is off."""

    price_per_hour: float = 0.0
    fallback: FallbackEngine | None = None
    """None: FALLBACK_ENGINE is not set."""


@dataclass(frozen=True, slots=True)
class FileServices:
    """Files that jobs read, and what is stored for a caller."""

    inputs: JobInputs
    uploads: UploadedFiles
    assets: AssetStore
    workflows: WorkflowStore
    models: JobModels
    asked_downloads: AskedDownloads
    manifest_state: ManifestState
    caller_quota: CallerQuota
    removal: JobRemoval


@dataclass(frozen=True, slots=True)
class DeliveryServices:
    """Outputs and webhooks on their way to whoever receives them."""

    outputs: OutputConfig
    links: LinkSigner
    targets: OutputTargets
    webhook: WebhookConfig
    check_webhook_url: Callable[[str], None]
    redelivery: Redelivery
    outbox: Outbox
    shows_folders: bool = True
    """True: results name folders of this machine."""


@dataclass(frozen=True, slots=True)
class ObservationServices:
    """Metrics, traces, the access log and the doctor."""

    metrics: Metrics
    scrape: Scrape
    history: HistoryRecorder
    tracer: Tracer
    examine: Callable[[], Awaitable[list[Check]]]
    connections: ConnectionTable
    has_access_log: bool = True


@dataclass(frozen=True, slots=True)
class Services:
    """Services of the request handlers, by what they own."""

    requests: RequestServices
    jobs: JobServices
    engines: EngineServices
    files: FileServices
    deliveries: DeliveryServices
    observation: ObservationServices
    platform: Platform
    platform_routes: PlatformRoutes | None = None
