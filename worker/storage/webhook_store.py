"""WebhookStore: the stored webhooks, from their job's end to their delivery or its failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import sqlalchemy as sa

from darkroom.worker.storage.database import WEBHOOKS, storable
from darkroom.worker.storage.database_thread import DatabaseThread
from darkroom.worker.storage.group_commit import GroupCommit
from darkroom.worker.storage.webhook_rows import (
    WebhookRow,
    WebhookState,
    forget_dead_before,
    is_due,
    revive_all,
    webhook_counts_query,
    webhook_update,
    webhooks_query,
)


class WebhookStore:
    """Rows of the webhook outbox. `on_erased` is called when a write erases secrets.

    `JobStore.save` inserts them with the last change of their job.
    """

    def __init__(self, database: DatabaseThread, commits: GroupCommit, on_erased: Callable[[], None]) -> None:
        self._database = database
        self._commits = commits
        self._on_erased = on_erased

    async def due(self, now_ms: int, limit: int = 32, but: Collection[str] = ()) -> list[WebhookRow]:
        """Return the oldest due webhooks, except those in `but`."""
        query = (
            sa.select(WEBHOOKS)
            .where(is_due(now_ms), WEBHOOKS.c.id.not_in(list(but)))
            .order_by(WEBHOOKS.c.next_at_ms)
            .limit(limit)
        )
        return await self._rows(query)

    async def next_at_ms(self, after_ms: int) -> int | None:
        """Return the time at which the next webhook that is not yet due will be due, or None."""
        query = sa.select(sa.func.min(WEBHOOKS.c.next_at_ms)).where(
            WEBHOOKS.c.state == "pending", WEBHOOKS.c.next_at_ms > after_ms
        )
        ((found,),) = await self._database.rows(query)
        return None if found is None else int(found)

    async def find(self, webhook_id: str) -> WebhookRow | None:
        """Return a webhook by id, or None."""
        found = await self._rows(sa.select(WEBHOOKS).where(WEBHOOKS.c.id == storable(webhook_id)))
        return found[0] if found else None

    async def newest(self, state: WebhookState | None, limit: int, before_ms: int | None) -> list[WebhookRow]:
        """Return the newest webhooks made before a time, optionally only those of one state."""
        return await self._rows(webhooks_query(state, limit, before_ms))

    async def counts(self) -> dict[str, int]:
        """Return the number of webhooks in each state that any is in."""
        found = map(tuple, await self._database.rows(webhook_counts_query()))
        return {str(state): int(count) for state, count in found}

    async def update(self, row: WebhookRow) -> None:
        """Store the outcome of a try. A delivered webhook loses its secret and the secrets in its URL."""
        if row.state == WebhookState.DELIVERED:
            self._on_erased()
        await self._commits.write(webhook_update(row))

    async def revive_dead(self) -> None:
        """Make every dead webhook due now, with a fresh set of tries."""
        await self._commits.write(revive_all(int(time.time() * 1000)))

    async def forget_dead_before(self, time_ms: int) -> None:
        """Remove dead webhooks whose last try was before a time, including their secrets."""
        await self._commits.write(forget_dead_before(time_ms))

    async def _rows(self, query: sa.Select[Any]) -> list[WebhookRow]:
        return [WebhookRow(**row._mapping) for row in await self._database.rows(query)]
