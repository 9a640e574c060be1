"""Outbox: webhooks that are owed, on disk from the moment a job ends. Delivered at least once under the same id."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import structlog

from worker.api.schemas import result_of
from worker.jobs.job import Credentials, Job
from worker.jobs.store import JobStore, WebhookRow
from worker.settings import WebhookConfig

IDLE_SECONDS = 60.0
FAULT_SECONDS = 5.0
MAX_AT_ONCE = 32

log = structlog.get_logger("webhooks")


class DeliveryOutcome(Protocol):
    """What became of one try: delivered, to be tried again at `retry_in_seconds`, or given up (None)."""

    @property
    def is_delivered(self) -> bool: ...
    @property
    def retry_in_seconds(self) -> float | None: ...
    @property
    def error(self) -> str: ...


class Sender(Protocol):
    async def deliver(self, row: WebhookRow) -> DeliveryOutcome: ...


def webhook_of(job: Job, kept: Credentials | None, config: WebhookConfig, outputs: Sequence[Any]) -> WebhookRow | None:
    """The entry for an ended job, or None when nobody wants one. `kept` are the credentials it had until now."""
    target = job.request.webhook
    if target is None:
        return None
    body: dict[str, Any] = {key: value for key, value in result_of(job, list(outputs)).items() if key in WEBHOOK_FIELDS}
    if target.extra_params:
        body["extra"] = dict(target.extra_params)
    own_secret = None if kept is None else kept.webhook_secret
    secret = config.secret.get_secret_value() if own_secret is None else own_secret
    now_ms = int(time.time() * 1000)
    return WebhookRow(
        id=f"msg_{uuid.uuid5(uuid.NAMESPACE_URL, f'{job.id} {job.times.queued_at_ms}').hex}",
        job_id=job.id,
        url=target.url,
        body=json.dumps(body).encode(),
        secret=secret or None,
        timeout_seconds=target.timeout_seconds,
        is_trusted=target.url == config.url,
        state="pending",
        attempts=0,
        created_ms=now_ms,
        next_at_ms=now_ms,
    )


WEBHOOK_FIELDS = frozenset({"id", "status", "message", "output", "timings", "error"})


class Outbox:
    def __init__(self, store: JobStore, sender: Sender) -> None:
        self._store = store
        self._sender = sender
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="webhook-outbox")

    async def stop(self) -> None:
        """What is still owed stays on disk."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for sending in self._sending.values():
            sending.cancel()
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    def look(self) -> None:
        """There is something new."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._send_due()
            except Exception:  # noqa: BLE001 - the outbox: a disk that fails for a while must not end it
                log.exception("the outbox cannot be read", retry_in_seconds=FAULT_SECONDS)
                pause = FAULT_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _send_due(self) -> float:
        """Begins what is due, each on its own, so that a slow receiver holds up no other; gives the seconds to wait."""
        now_ms = int(time.time() * 1000)
        room = MAX_AT_ONCE - len(self._sending)
        due = await self._store.due_webhooks(now_ms, room, self._sending) if room else []
        for row in due:
            task = self._sending[row.id] = asyncio.create_task(self._send(row), name=f"webhook-{row.id}")
            task.add_done_callback(lambda _, row_id=row.id: self._sent(row_id))  # type: ignore[misc]
        next_at_ms = await self._store.next_webhook_at_ms(now_ms)
        return IDLE_SECONDS if next_at_ms is None else min(max(0.05, next_at_ms / 1000 - time.time()), IDLE_SECONDS)

    def _sent(self, row_id: str) -> None:
        del self._sending[row_id]
        self._wake.set()

    async def _send(self, row: WebhookRow) -> None:
        try:
            tried = after_try(row, await self._sender.deliver(row), int(time.time() * 1000))
            log.info(
                "webhook tried", webhook_id=row.id, state=tried.state, attempts=tried.attempts, reason=tried.last_error
            )
            await self._store.update_webhook(tried)
        except Exception:  # noqa: BLE001 - one webhook: it is owed still, and tried again later
            log.exception("a webhook failed for a reason of ours", webhook_id=row.id)
            await asyncio.sleep(FAULT_SECONDS)


def after_try(row: WebhookRow, outcome: DeliveryOutcome, now_ms: int) -> WebhookRow:
    """The entry as it is after a try."""
    tried = replace(row, attempts=row.attempts + 1, last_error=outcome.error)
    if outcome.is_delivered:
        return replace(tried, state="delivered")
    if outcome.retry_in_seconds is None:
        return replace(tried, state="dead")
    return replace(tried, next_at_ms=now_ms + int(outcome.retry_in_seconds * 1000))
