"""Services of the request handlers, put together from the areas of the front."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from darkroom.modifiers.registry import ModifierRegistry, build_registry
from darkroom.worker.api.services import (
    DeliveryServices,
    EngineServices,
    FileServices,
    JobServices,
    ObservationServices,
    PlatformRoutes,
    RequestServices,
    Services,
)
from darkroom.worker.app.job_area import JobArea
from darkroom.worker.app.link_key import link_key
from darkroom.worker.app.metrics import MetricsArea
from darkroom.worker.app.storage import Storage
from darkroom.worker.autoscaler.platform import Platform
from darkroom.worker.doctor.examination import examine
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fleet import EngineFleet
from darkroom.worker.engines.interface import EngineInterface
from darkroom.worker.guard.bodies import Bodies
from darkroom.worker.guard.identity.browser_sessions import BrowserSessions
from darkroom.worker.guard.listener.connections import ConnectionTable
from darkroom.worker.guard.rate_limits import RateLimits
from darkroom.worker.jobs.asked_downloads import AskedDownloads
from darkroom.worker.jobs.manifest_state import ManifestState
from darkroom.worker.jobs.redelivery import Redelivery
from darkroom.worker.observe.tracing import Tracer
from darkroom.worker.outputs.links import LinkSigner
from darkroom.worker.prompts.rules import PromptRules
from darkroom.worker.qualification.state import Qualification
from darkroom.worker.settings.settings import Settings
from darkroom.worker.storage.workflow_store import WorkflowStore

log = structlog.get_logger("startup")


@dataclass(frozen=True, slots=True)
class Areas:
    """Areas of the front, each built from the ones before it."""

    tracer: Tracer
    fleet: EngineFleet
    fallback: FallbackEngine | None
    storage: Storage
    jobs: JobArea
    metrics: MetricsArea
    platform: Platform
    platform_routes: PlatformRoutes | None
    """None: the platform has no routes of its own."""

    forget_choices: Callable[[], None]
    """Has the engines asked anew for their files."""


def build_services(
    settings: Settings,
    areas: Areas,
    connections: ConnectionTable,
    benchmark_now: Callable[[], Awaitable[None]],
    setting_warnings: Sequence[str],
) -> Services:
    """Build the services without the intake. `benchmark_now` runs the benchmark on request. Raises StateUnusable."""
    storage, jobs, pool = areas.storage, areas.jobs, areas.fleet.pool
    return Services(
        requests=RequestServices(
            guard=storage.external_io.guard,
            caller_limits=settings.callers,
            caller_rates=RateLimits(settings.callers),
            bodies=Bodies(settings.bodies, settings.json_limits()),
            modifiers=_modifiers(settings),
            prompt_rules=PromptRules(settings.prompts, settings.node_policy),
            http_metrics=areas.metrics.http,
            metrics_are_open=settings.access.metrics_are_open,
        ),
        jobs=JobServices(
            store=storage.store,
            pipeline=jobs.pipeline,
            admission=jobs.admission,
            gate=jobs.gate,
            queue_info=jobs.queue_info,
            run_clock=jobs.run_clock,
            limits=jobs.limits,
        ),
        engines=EngineServices(
            pool=pool,
            fleet=areas.fleet,
            supervision=settings.supervision,
            floors=jobs.floors,
            qualification=Qualification(benchmark_now),
            sessions=BrowserSessions(),
            interface=EngineInterface(pool) if settings.engine.has_front_end else None,
            price_per_hour=settings.broker.price_per_hour,
            fallback=areas.fallback,
        ),
        files=_files(areas),
        deliveries=_deliveries(settings, areas),
        observation=ObservationServices(
            metrics=areas.metrics.metrics,
            scrape=areas.metrics.scrape,
            history=areas.metrics.history,
            tracer=areas.tracer,
            examine=lambda: examine(settings, setting_warnings, is_within_worker=True),
            connections=connections,
            has_access_log=settings.log.has_access_log,
        ),
        platform=areas.platform,
        platform_routes=areas.platform_routes,
    )


def _files(areas: Areas) -> FileServices:
    storage = areas.storage
    return FileServices(
        inputs=storage.external_io.inputs,
        uploads=storage.external_io.uploads,
        assets=storage.assets,
        workflows=WorkflowStore(storage.store),
        models=storage.models,
        asked_downloads=AskedDownloads(storage.models.downloader, storage.model_metrics, areas.forget_choices),
        manifest_state=ManifestState(storage.models.library, areas.fleet.pool),
        caller_quota=areas.jobs.quota,
        removal=areas.jobs.removal,
    )


def _deliveries(settings: Settings, areas: Areas) -> DeliveryServices:
    storage = areas.storage
    return DeliveryServices(
        outputs=settings.outputs,
        links=LinkSigner(link_key(settings.folders.state_path)),
        targets=storage.external_io.targets,
        webhook=settings.webhook,
        check_webhook_url=storage.external_io.check_webhook_url,
        redelivery=Redelivery(storage.store, storage.external_io.outputs),
        outbox=storage.outbox,
        shows_folders=not settings.asks_for_keys,
    )


def _modifiers(settings: Settings) -> ModifierRegistry:
    registry = build_registry(settings.folders.modifiers_path)
    for broken in registry.broken:
        log.error("modifier unusable", file=broken.source, reason=broken.reason)
    return registry
