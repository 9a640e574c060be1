"""Outbox: pending webhooks, on disk from the moment a job ends. Delivered at least once under the same id.

A webhook whose last try has failed is a dead letter: it is kept, and sent again on request.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import structlog

from darkroom.worker.errors import StateUnusable, WebhookNotFound, WebhookNotReady
from darkroom.worker.guard.url_secrets import without_url_secrets
from darkroom.worker.jobs.envelope import result_of
from darkroom.worker.json import finite as finite_json
from darkroom.worker.observe.io_metrics import IoMetrics
from darkroom.worker.observe.tracing import Attribute, PassingTracer, Tracer
from darkroom.worker.outputs.webhook import DeliveryOutcome
from darkroom.worker.settings.outputs import WebhookConfig
from darkroom.worker.storage.job import Credentials, Job, WebhookTarget
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import (
    SecretSource,
    WebhookRow,
    WebhookState,
)

IDLE_SECONDS = 60.0
FAULT_SECONDS = 5.0
MAX_AT_ONCE = 32

log = structlog.get_logger("webhooks")


class Sender(Protocol):
    async def deliver(self, row: WebhookRow) -> DeliveryOutcome: ...


def webhooks_of(
    job: Job, kept: Credentials | None, config: WebhookConfig, outputs: Sequence[dict[str, object]]
) -> list[WebhookRow]:
    """Return the entries for an ended job: one for each output where the request asks for them, then that of the end.

    Empty if no webhook is configured. `kept` are the credentials that the job had until now.
    """
    target = job.request.webhook
    if target is None:
        return []
    body: dict[str, Any] = {key: value for key, value in result_of(job, list(outputs)).items() if key in WEBHOOK_FIELDS}
    if target.extra_params:
        body["extra"] = dict(target.extra_params)
    if target.events:
        body["event"] = "ended"
    name = f"{job.id} {job.times.queued_at_ms}"
    end = _row(job, target, kept, config, name, body)
    if "output" not in target.events:
        return [end]
    common: dict[str, Any] = {key: body[key] for key in ("id", "status", "metadata", "extra") if key in body}
    return [
        *(
            _row(
                job,
                target,
                kept,
                config,
                f"{name} output {index}",
                {**common, "event": "output", "output": [output], "output_index": index, "output_count": len(outputs)},
            )
            for index, output in enumerate(outputs)
        ),
        end,
    ]


def _row(
    job: Job,
    target: WebhookTarget,
    kept: Credentials | None,
    config: WebhookConfig,
    name: str,
    body: dict[str, Any],
) -> WebhookRow:
    """Return an entry that is due now. The same `name` gives the same id, so that a receiver knows a repetition."""
    secret, source = secret_of(kept, config, target.url)
    now_ms = int(time.time() * 1000)
    return WebhookRow(
        id=f"msg_{uuid.uuid5(uuid.NAMESPACE_URL, name).hex}",
        job_id=job.id,
        url=target.url,
        body=finite_json.dumps(body).encode(),
        secret=secret,
        timeout_seconds=target.timeout_seconds,
        is_trusted=target.url == config.url,
        state=WebhookState.PENDING,
        attempts=0,
        created_ms=now_ms,
        next_at_ms=now_ms,
        secret_source=source,
    )


def signed_row(row: WebhookRow, config: WebhookConfig) -> WebhookRow:
    """Return the entry with the secret that signs it, which must never be stored.

    The operator's secret signs only for the operator's address, whatever a stored entry contains.
    """
    if row.secret_source != SecretSource.ENVIRONMENT:
        return row
    return replace(row, secret=(config.secret.get_secret_value() or None) if row.is_trusted else None)


def secret_of(kept: Credentials | None, config: WebhookConfig, url: str) -> tuple[str | None, SecretSource]:
    """Return the secret that a row for an address stores, and its source.

    The request's own secret has precedence; an empty one disables signing. The operator's signs only for WEBHOOK_URL.
    """
    own = None if kept is None else kept.webhook_secret
    if own is not None:
        return (own, SecretSource.REQUEST) if own else (None, SecretSource.NONE)
    is_operators = url == config.url and bool(config.secret.get_secret_value())
    return None, SecretSource.ENVIRONMENT if is_operators else SecretSource.NONE


WEBHOOK_FIELDS = frozenset({"id", "status", "message", "output", "timings", "metadata", "error"})


class Outbox:
    def __init__(
        self,
        store: JobStore,
        sender: Sender,
        config: WebhookConfig,
        io_metrics: IoMetrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._store = store
        self._webhooks = store.webhooks
        self._sender = sender
        self._config = config
        self._io_metrics = io_metrics or IoMetrics()
        self._tracer = tracer or PassingTracer()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="webhook-outbox")

    async def stop(self) -> None:
        """Stop the deliveries. Pending webhooks stay on disk."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for sending in self._sending.values():
            sending.cancel()
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    def wake(self) -> None:
        """Wake the delivery loop after a change."""
        self._wake.set()

    async def page(
        self, state: WebhookState | None, limit: int, before_ms: int | None = None
    ) -> tuple[list[WebhookRow], dict[str, int]]:
        """Return the newest entries created before a time, and the number of entries in each state."""
        rows = await self._webhooks.newest(state, limit, before_ms)
        return rows, await self.counts()

    async def counts(self) -> dict[str, int]:
        """Return the number of entries in each state."""
        counts = dict.fromkeys((state.value for state in WebhookState), 0)
        return counts | await self._webhooks.counts()

    async def show_counts(self) -> None:
        """Set the gauges of entries by state."""
        self._io_metrics.webhooks_kept(await self.counts())

    async def redeliver(self, webhook_id: str, secret: str | None = None, url: str = "") -> WebhookRow:
        """Make an entry due now, with a fresh set of tries; `secret` and `url` replace erased ones.

        `url` must name the place that the entry was sent to. Raises WebhookNotFound, WebhookNotReady.
        """
        row = await self._webhooks.find(webhook_id)
        if row is None:
            raise WebhookNotFound(f"No webhook has the id {webhook_id}")
        if webhook_id in self._sending:
            raise WebhookNotReady("It is being sent at this moment")
        if secret is not None:
            row = replace(
                row, secret=secret or None, secret_source=SecretSource.REQUEST if secret else SecretSource.NONE
            )
        if row.has_lost_its_secret:
            raise WebhookNotReady("Its secret was erased when it was delivered; give `secret`, empty for no signature")
        row = replace(
            row,
            url=self._address_of(row, url),
            state=WebhookState.PENDING,
            attempts=0,
            next_at_ms=int(time.time() * 1000),
        )
        await self._webhooks.update(row)
        self.wake()
        return row

    def _address_of(self, row: WebhookRow, url: str) -> str:
        """Return the address for the redelivery of an entry. Raises WebhookNotReady."""
        if not row.has_lost_its_url:
            return row.url
        given = url or (self._config.url if row.is_trusted else "")
        if without_url_secrets(given) != row.url:
            raise WebhookNotReady(
                f"url: the user or query of its address was erased when it was delivered; expected {row.url} in full"
            )
        return given

    async def redeliver_dead(self) -> int:
        """Make every dead entry due now and return their number."""
        counts = await self.counts()
        await self._webhooks.revive_dead()
        self.wake()
        return counts[WebhookState.DEAD]

    async def forget_dead_before(self, time_ms: int) -> None:
        await self._webhooks.forget_dead_before(time_ms)

    async def try_once(self, url: str, secret: str | None, timeout_seconds: float | None) -> DeliveryOutcome:
        """Send a test notice now and return the outcome. Nothing is stored and nothing is retried."""
        now_ms = int(time.time() * 1000)
        row = WebhookRow(
            id=f"msg_{uuid.uuid4().hex}",
            job_id="",
            url=url or self._config.url,
            body=finite_json.dumps(
                {"id": "test", "status": "test", "message": "A test of this webhook", "output": []}
            ).encode(),
            secret=secret or None,
            timeout_seconds=timeout_seconds or self._config.timeout_seconds,
            is_trusted=url in ("", self._config.url),
            state=WebhookState.PENDING,
            attempts=0,
            created_ms=now_ms,
            next_at_ms=now_ms,
            secret_source=SecretSource.ENVIRONMENT if secret is None else SecretSource.REQUEST,
        )
        return await self._sender.deliver(signed_row(row, self._config))

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._send_due()
            except Exception:  # noqa: BLE001 - the outbox: a temporary disk failure must not end it
                log.exception("outbox unreadable", retry_in_seconds=FAULT_SECONDS)
                pause = FAULT_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _send_due(self) -> float:
        """Start a task for each due webhook and return the seconds until the next one is due.

        Each has a task of its own, so that a slow receiver does not delay others.
        """
        now_ms = int(time.time() * 1000)
        room = MAX_AT_ONCE - len(self._sending)
        due = await self._webhooks.due(now_ms, room, self._sending) if room else []
        for row in due:
            task = self._sending[row.id] = asyncio.create_task(self._send(row), name=f"webhook-{row.id}")
            task.add_done_callback(lambda _, row_id=row.id: self._sent(row_id))  # type: ignore[misc]
        next_at_ms = await self._webhooks.next_at_ms(now_ms)
        return IDLE_SECONDS if next_at_ms is None else min(max(0.05, next_at_ms / 1000 - time.time()), IDLE_SECONDS)

    def _sent(self, row_id: str) -> None:
        del self._sending[row_id]
        self._wake.set()

    async def _send(self, row: WebhookRow) -> None:
        try:
            outcome = await self._deliver(row)
            tried = after_try(row, outcome, int(time.time() * 1000))
            self._io_metrics.webhook_tried(tried.state)
            log.info(
                "webhook tried", webhook_id=row.id, state=tried.state, attempts=tried.attempts, reason=tried.last_error
            )
            await self._webhooks.update(tried)
        except Exception:  # noqa: BLE001 - one webhook: it is still pending, and is retried later
            log.exception("webhook delivery failed", webhook_id=row.id)
            await asyncio.sleep(FAULT_SECONDS)

    async def _deliver(self, row: WebhookRow) -> DeliveryOutcome:
        """Try once, in the trace of the request that the webhook's job came from."""
        parent = await self._traceparent_of(row)
        about: dict[str, Attribute] = {
            "darkroom.webhook_id": row.id,
            "darkroom.request_id": row.job_id,
            "darkroom.attempt": row.attempts + 1,
        }
        span = self._tracer.start("webhook", parent, about, "client")
        try:
            outcome = await self._sender.deliver(signed_row(replace(row, traceparent=span.traceparent), self._config))
        except BaseException as error:
            span.end(error=type(error).__name__)
            raise
        span.end(error=outcome.error)
        return outcome

    async def _traceparent_of(self, row: WebhookRow) -> str:
        """Return the context of the job's request; empty without one, and for a job that cannot be read."""
        try:
            job = await self._store.find(row.job_id)
        except StateUnusable:  # the webhook does not depend on the job's row
            return ""
        return "" if job is None else job.request.traceparent


def after_try(row: WebhookRow, outcome: DeliveryOutcome, now_ms: int) -> WebhookRow:
    """Return the entry as updated by the outcome of a try."""
    tried = replace(row, attempts=row.attempts + 1, last_error=outcome.error, tried_ms=now_ms)
    if outcome.is_delivered:
        return replace(tried, state=WebhookState.DELIVERED, secret=None)
    if outcome.retry_in_seconds is None:
        return replace(tried, state=WebhookState.DEAD)
    return replace(tried, next_at_ms=now_ms + int(outcome.retry_in_seconds * 1000))
