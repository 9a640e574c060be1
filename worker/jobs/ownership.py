"""Whose a job is: each caller has request ids of its own, and another's job is an unknown one.

A job is stored under the `request_id` of its request as long as no other caller's job has that id, else under one that
is made from it and the caller's name. Its caller knows it by the id that was asked for either way.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from worker.guard.identity import Identity
from worker.jobs.job import Job
from worker.jobs.store import JobStore

MAX_SHOWN_LENGTH: Final = 80
DIGEST_LENGTH: Final = 20


def own_id(job_id: str, owner: str) -> str:
    """Return the id of this caller's job where another's has `job_id`: always the same one, and no other caller's."""
    digest = sha256(f"{owner}\n{job_id}".encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{job_id[:MAX_SHOWN_LENGTH]}-{digest}"


async def id_to_use(store: JobStore, job_id: str, owner: str) -> str:
    """Return the id under which this caller's job with the id asked for is stored, or is to be."""
    held = await store.find(job_id)
    if held is not None and held.owner in (None, owner):
        return job_id
    own = own_id(job_id, owner)
    return own if held is not None or await store.find(own) is not None else job_id


async def find_job(store: JobStore, job_id: str, caller: Identity) -> Job | None:
    """Return the job that this caller knows by the id, None where there is none for him."""
    held = await store.find(job_id)
    if held is not None and caller.owns(held.owner):
        return held
    own = await store.find(own_id(job_id, caller.key_name))
    if own is not None and caller.owns(own.owner):
        return own
    return held if held is not None and caller.may_see(held.owner) else None
