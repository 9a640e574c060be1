"""Number of engines that a job lost by causes outside of it; it outlives the front, which may be killed as well."""

from __future__ import annotations

import contextlib

from darkroom.worker.errors import DatabaseUnreachable
from darkroom.worker.storage.database import FACT_DELETE, FACT_UPSERT
from darkroom.worker.storage.fact_store import FactStore
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.webhook_rows import Write


async def restore_losses(facts: FactStore, job: Job) -> None:
    """Read the number that an earlier front has counted for a recovered job."""
    with contextlib.suppress(DatabaseUnreachable):
        job.num_outside_losses = int(str(await facts.get(_name(job)) or 0))


def losses_update(job: Job) -> Write:
    """Return the write that stores a job's number, for `JobStore.save`."""
    return FACT_UPSERT, {"name": _name(job), "value": str(job.num_outside_losses)}


def losses_delete(job: Job) -> list[Write]:
    """Return the write that removes the number of a job that ends; none where nothing was counted."""
    if job.num_outside_losses or job.is_recovered:  # an earlier front may have counted some
        return [(FACT_DELETE, {"gone_name": _name(job)})]
    return []


def _name(job: Job) -> str:
    return f"outside_losses {job.id}"
