"""Vast's parts of a worker under Vast, or with its master token: built from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import structlog

from darkroom.worker.autoscaler.autoscaler import Autoscaler
from darkroom.worker.autoscaler.platform import Background
from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.guard.plain_responses import plain_client
from darkroom.worker.integrations.vast.autoscaler import VastAutoscaler
from darkroom.worker.integrations.vast.envelope import EnvelopeOpener
from darkroom.worker.integrations.vast.ledger import Ledger
from darkroom.worker.integrations.vast.public_key import PublicKeySource
from darkroom.worker.integrations.vast.reports import Reporter
from darkroom.worker.integrations.vast.routes import VastRoutes
from darkroom.worker.integrations.vast.sessions import SessionStore
from darkroom.worker.settings.platforms import VastConfig, VastTiming
from darkroom.worker.settings.settings import Settings

log = structlog.get_logger("vast")


@dataclass(frozen=True, slots=True)
class VastParts:
    """Parts that the worker uses through its ports. `autoscaler` and `routes` are None outside of Vast."""

    envelopes: EnvelopeOpener
    autoscaler: Autoscaler | None
    routes: VastRoutes | None
    background: tuple[Background, ...]


class VastHttp:
    """Connections to Vast; `keys` are fetched here for a worker that checks signatures and sends no reports."""

    def __init__(self, http: httpx.AsyncClient, keys: PublicKeySource | None) -> None:
        self._http = http
        self._keys = keys
        self._tasks = BackgroundTasks(_report_failure)

    async def start(self) -> None:
        if self._keys is not None:
            self._tasks.spawn(self._keys.poll(lambda _reason: None, lambda: None), name="public-key")

    async def close(self) -> None:
        await self._tasks.close()
        await self._http.aclose()


def _report_failure(task: asyncio.Task[None], error: BaseException) -> None:
    log.error("task failed", task=task.get_name(), exc_info=error)


def build_vast(settings: Settings, cancel_job: Callable[[str], None], timing: VastTiming) -> VastParts:
    """Build Vast's parts. `cancel_job` ends a job by its id, if there is one that has not ended."""
    config, http = settings.vast_config(), plain_client()
    is_signed = bool(config.master_token.get_secret_value()) and not config.is_unsecured
    keys = PublicKeySource(config.report_addresses, http, timing) if is_signed else None
    if not settings.is_under_vast:
        opener = EnvelopeOpener(keys, is_unsecured=config.is_unsecured, own_url=config.checked_url)
        return VastParts(opener, None, None, (VastHttp(http, keys),))
    vast = _autoscaler(config, keys, http, cancel_job, timing)
    opener = EnvelopeOpener(keys, is_unsecured=config.is_unsecured, own_url=config.checked_url, sessions=vast.sessions)
    return VastParts(opener, vast, VastRoutes(vast, opener, config), (VastHttp(http, None),))


def _autoscaler(
    config: VastConfig,
    keys: PublicKeySource | None,
    http: httpx.AsyncClient,
    cancel_job: Callable[[str], None],
    timing: VastTiming,
) -> VastAutoscaler:
    ledger = Ledger()
    reporter = Reporter(config, ledger, http, timing)
    sessions = SessionStore(config.max_sessions, config.max_session_seconds)
    return VastAutoscaler(reporter, ledger, sessions, keys, cancel_job, timing)
