"""Erasure of secrets from the job database when a job ends.

SQLite overwrites deleted data with zeros (`secure_delete`), but the write-ahead log keeps the former pages until it is
truncated. Every commit that erases something is therefore followed by a checkpoint (`log_truncation.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

import sqlalchemy as sa

from darkroom.worker.guard.url_secrets import has_url_secrets, without_url_secrets
from darkroom.worker.storage.database import JOBS
from darkroom.worker.storage.job import Job, JobRequest
from darkroom.worker.storage.webhook_rows import Write


class Erasure:
    """The ids of live jobs with stored secrets. `on_erased` is called when the next commit erases some."""

    def __init__(self, on_erased: Callable[[], None]) -> None:
        self._on_erased = on_erased
        self._holding_urls: set[str] = set()
        self._holding_credentials: set[str] = set()

    def begin(self, job: Job) -> None:
        """Record the secrets of a job when it is stored or read back."""
        kept = job.credentials
        if kept is not None and not kept.is_empty:
            self._holding_credentials.add(job.id)
        webhook = job.request.webhook
        given = [job.prompt, dict(job.request.extra), "" if webhook is None else webhook.url]
        if has_url_secrets(given):
            self._holding_urls.add(job.id)

    def end(self, job: Job) -> list[Write]:
        """Return the writes that erase the secrets in the URLs of an ending job; its credentials are already cleared.

        There are none for a job without secrets.
        """
        had_credentials, had_urls = job.id in self._holding_credentials, job.id in self._holding_urls
        self._holding_credentials.discard(job.id)
        self._holding_urls.discard(job.id)
        if had_credentials or had_urls:
            self._on_erased()
        if not had_urls:
            return []
        job.request = _erased(job.request)
        erased = {
            "prompt": json.dumps(without_url_secrets(job.prompt)),
            "request": json.dumps(asdict(job.request)),
        }
        is_job = sa.and_(JOBS.c.id == sa.bindparam("erased_id"), JOBS.c.queued_ms == sa.bindparam("erased_queued_ms"))
        named = {"erased_id": job.id, "erased_queued_ms": job.times.queued_at_ms}
        return [(sa.update(JOBS).where(is_job).values(erased), named)]


def _erased(request: JobRequest) -> JobRequest:
    erased = replace(request, extra=without_url_secrets(dict(request.extra)))  # a page names inputs and models, too
    if request.webhook is None:
        return erased
    return replace(erased, webhook=replace(request.webhook, url=without_url_secrets(request.webhook.url)))
