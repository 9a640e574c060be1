"""Jobs of a broker among the stored ones."""

from __future__ import annotations

import sqlalchemy as sa

from darkroom.worker.storage.database import JOBS
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.store import JobStore

MAX_JOBS = 1000


async def ended_jobs_of_broker(store: JobStore, since: float) -> list[Job]:
    """Return jobs from a broker that have ended since a time (epoch seconds), the last ones first."""
    query = (
        sa.select(JOBS.c.id)
        .where(JOBS.c.finished_ms > since * 1000, JOBS.c.request.like('%"receipt":"_%'))
        .order_by(JOBS.c.finished_ms.desc())
        .limit(MAX_JOBS)
    )
    found = [await store.find(row.id) for row in await store.read(query)]
    return [job for job in found if job is not None and job.request.receipt]
