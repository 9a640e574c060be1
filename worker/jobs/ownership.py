"""Ownership of jobs: each caller has its own request ids, and another caller's job is reported as unknown.

A job is stored under the `request_id` of its request unless another caller's job has that id. It is then stored under
an id made from the requested one and the caller's name. In both cases its caller refers to it by the requested id.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final, Protocol

from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.admission import clean_id
from darkroom.worker.storage.job import Job

MAX_SHOWN_LENGTH: Final = 80
DIGEST_LENGTH: Final = 20
OWN_ID: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_SHOWN_LENGTH - 1}}}~[0-9a-f]{{{DIGEST_LENGTH}}}")
"""The form of derived ids. No request can ask for an id with a tilde, so none can be taken in advance."""


class FindsJobs(Protocol):
    async def find(self, job_id: str) -> Job | None:
        """Return a job by id, or None."""
        ...


def own_id(job_id: str, owner: str) -> str:
    """Return the derived id of a caller's job if another's has `job_id`: deterministic and unique per caller."""
    digest = sha256(f"{owner}\n{job_id}".encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{job_id[:MAX_SHOWN_LENGTH]}~{digest}"


def id_in_path(raw: str) -> str:
    """Return the stored id for the id in a route's path: a derived id unchanged, else the cleaned id of a request."""
    return raw if OWN_ID.fullmatch(raw) and ".." not in raw else clean_id(raw)


async def id_to_use(store: FindsJobs, job_id: str, owner: str) -> str:
    """Return the id under which this caller's job with the requested id is stored, or will be."""
    held = await store.find(job_id)
    if held is not None and held.owner in (None, owner):
        return job_id
    own = own_id(job_id, owner)
    return own if held is not None or await store.find(own) is not None else job_id


async def find_job(store: FindsJobs, raw_id: str, caller: Identity) -> Job | None:
    """Return the job that the id in a path means for this caller; None if the caller has none and may see no other."""
    job_id = id_in_path(raw_id)
    held = await store.find(job_id)
    if held is not None and caller.owns(held.owner):
        return held
    own = await store.find(own_id(job_id, caller.key_name))
    if own is not None and caller.owns(own.owner):
        return own
    return held if held is not None and caller.may_see(held.owner) else None
