"""Expiry: what is over and old leaves the disk: ended jobs with their folders, inputs that no job needs."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable

import structlog

from worker.jobs.outbox import Outbox
from worker.jobs.store import JobStore
from worker.settings import RetentionConfig

EXPIRY_SECONDS = 60.0

log = structlog.get_logger("expiry")


class Expiry:
    """`run_forever()` is its task. `forget_inputs` removes fetched files that no job needs: those unused since
    the given epoch seconds, and the oldest while their sum is over the given bytes.
    """

    def __init__(
        self,
        store: JobStore,
        outbox: Outbox,
        config: RetentionConfig,
        forget_inputs: Callable[[float, int], Awaitable[None]],
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._config = config
        self._forget_inputs = forget_inputs

    async def run_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            try:
                await self.remove_expired()
            except Exception:  # noqa: BLE001 - the expiry: a disk that fails for a while must not end it
                log.exception("what has expired cannot be removed", retry_in_seconds=EXPIRY_SECONDS)

    async def remove_expired(self) -> None:
        dead_before = time.time() - self._config.dead_webhook_ttl_seconds
        await self._outbox.forget_dead_before(int(dead_before * 1000))
        before = time.time() - self._config.result_ttl_seconds
        for job_id in await self._store.forget_finished_before(int(before * 1000)):
            await asyncio.to_thread(shutil.rmtree, self._store.job_directory(job_id), True)
        await self._forget_inputs(before, self._config.input_max_bytes)
