"""Labels of jobs: the pairs of text in a job's `metadata`, and the search for jobs that have some of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from darkroom.worker.storage.database import JOBS, dump_json
from darkroom.worker.storage.store import JobStore

MAX_ROWS = 1000
"""Rows that one query reads; a search that finds too few goes on with the next ones."""


def labels_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the pairs of metadata whose value is a text."""
    return {name: value for name, value in metadata.items() if isinstance(value, str)}


async def find_labelled(
    store: JobStore, labels: Mapping[str, str], limit: int, *, owner: str | None, before: int | None
) -> list[tuple[str, int]]:
    """Return ids and numbers of up to `limit` jobs that have all the labels, the newest first.

    `owner` None: of all callers. `before` is the number below which the search begins.
    """
    found: list[tuple[str, int]] = []
    while True:
        query = sa.select(JOBS.c.id, JOBS.c.number, JOBS.c.metadata).order_by(JOBS.c.number.desc())
        query = query.where(*(JOBS.c.metadata.contains(_pair(*pair), autoescape=True) for pair in labels.items()))
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        if before is not None:
            query = query.where(JOBS.c.number < before)
        rows = await store.read(query.limit(MAX_ROWS if labels else limit))
        for row in rows:
            # The text may also be that of a nested value, or differ by case.
            if not labels or labels.items() <= labels_of(json.loads(row.metadata)).items():
                found.append((row.id, row.number))
        if len(found) >= limit or len(rows) < MAX_ROWS:
            return found[:limit]
        before = rows[-1].number


def _pair(name: str, value: str) -> str:
    return dump_json({name: value})[1:-1]
