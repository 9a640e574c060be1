"""Whose a job is: each caller has request ids of its own, and another's job is an unknown one.

A job is stored under the `request_id` of its request as long as no other caller's job has that id, else under one that
is made from it and the caller's name. Its caller knows it by the id that was asked for either way.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from worker.guard.identity import Identity
from worker.jobs.admission import clean_id
from worker.jobs.job import Job
from worker.jobs.store import JobStore

MAX_SHOWN_LENGTH: Final = 80
DIGEST_LENGTH: Final = 20
OWN_ID: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_SHOWN_LENGTH - 1}}}~[0-9a-f]{{{DIGEST_LENGTH}}}")
"""The tilde is in no id that a request can ask for, so nobody takes such an id before its owner does."""


def own_id(job_id: str, owner: str) -> str:
    """Return the id of this caller's job where another's has `job_id`: always the same one, and no other caller's."""
    digest = sha256(f"{owner}\n{job_id}".encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{job_id[:MAX_SHOWN_LENGTH]}~{digest}"


def id_in_path(raw: str) -> str:
    """Return the stored id that a route's path names: one as it is, or what a request's id is made into."""
    return raw if OWN_ID.fullmatch(raw) and ".." not in raw else clean_id(raw)


async def id_to_use(store: JobStore, job_id: str, owner: str) -> str:
    """Return the id under which this caller's job with the id asked for is stored, or is to be."""
    held = await store.find(job_id)
    if held is not None and held.owner in (None, owner):
        return job_id
    own = own_id(job_id, owner)
    return own if held is not None or await store.find(own) is not None else job_id


async def find_job(store: JobStore, raw_id: str, caller: Identity) -> Job | None:
    """Return the job that this caller knows by the id, as it stands in a path; None where there is none for it."""
    job_id = id_in_path(raw_id)
    held = await store.find(job_id)
    if held is not None and caller.owns(held.owner):
        return held
    own = await store.find(own_id(job_id, caller.key_name))
    if own is not None and caller.owns(own.owner):
        return own
    return held if held is not None and caller.may_see(held.owner) else None
