"""Search in the prompts of the job list, in steps that are bounded in what one query and one page read.

The text of a prompt is in no index, so a search reads prompts. It looks at a few jobs in each query, so that the
database answers others between them, and a page ends after a number of jobs or characters, with a position from which
to look on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.guard.url_secrets import without_url_secrets
from darkroom.worker.storage.database import JOBS
from darkroom.worker.storage.job_list import (
    Cursor,
    JobFilter,
    ListedJob,
    Read,
    first_characters,
    listed_job,
    object_of,
    positions_query,
    rows_query,
)

SEARCHED = 500
"""Jobs that one page of a search looks through."""

SEARCHED_AT_ONCE = 20
"""Jobs whose prompts one query reads."""

SEARCHED_LENGTH = 8_000_000
"""Characters of prompts after which a page ends."""

STORED_WORKFLOW = "workflow"
"""Parameter of a job that names the stored workflow that it is of."""


async def search_page(
    read: Read,
    wanted: JobFilter,
    text: str,
    after: Cursor | None,
    limit: int,
    *,
    in_stored_workflows: bool,
    listed: sa.Table = JOBS,
) -> tuple[list[ListedJob], Cursor | None]:
    """Return up to `limit` jobs that pass the filter and whose prompts contain a text, in upper or lower case.

    Looks through SEARCHED jobs or about SEARCHED_LENGTH characters, and returns the position from which to look on;
    None at the end of the list. Credentials in addresses are not found, and prompts of stored workflows only with
    `in_stored_workflows`: a search must not tell what the list does not show. Of a prompt the first MAX_READ_LENGTH
    characters are looked at.
    """
    positions = await read(positions_query(wanted, after, SEARCHED, listed))
    found: list[ListedJob] = []
    length = 0
    for start in range(0, len(positions), SEARCHED_AT_ONCE):
        part = positions[start : start + SEARCHED_AT_ONCE]
        rows = await read(rows_query(part).add_columns(first_characters("prompt")))
        matching = await off_loop(True, _matching, rows, json.dumps(text)[1:-1].lower())
        if matching and not in_stored_workflows:
            matching = await _without_stored_workflows(read, matching)
        found += map(listed_job, matching)
        if len(found) > limit:
            return found[:limit], found[limit - 1].cursor
        length += sum(len(row.prompt) for row in rows)
        if length >= SEARCHED_LENGTH:
            break
    if not positions or (part[-1] is positions[-1] and len(positions) < SEARCHED):
        return found, None
    return found, Cursor(part[-1].queued_ms, part[-1].number)


def _matching(rows: Sequence[sa.Row[Any]], text: str) -> list[sa.Row[Any]]:
    """Return the jobs whose prompts contain a text, which is lower case and escaped as in JSON, not in a credential."""
    return [row for row in rows if text in row.prompt.lower() and text in without_url_secrets(row.prompt).lower()]


async def _without_stored_workflows(read: Read, rows: Sequence[sa.Row[Any]]) -> list[sa.Row[Any]]:
    """Return the jobs that sent their workflow themselves; those whose request is too long to read are left out."""
    times = [row.queued_ms for row in rows]
    query = sa.select(JOBS.c.number, first_characters("request")).where(
        JOBS.c.number.in_([row.number for row in rows]), JOBS.c.queued_ms.between(min(times), max(times))
    )
    own = await off_loop(True, _numbers_of_own, await read(query))
    return [row for row in rows if row.number in own]


def _numbers_of_own(rows: Sequence[sa.Row[Any]]) -> set[int]:
    requests = {row.number: object_of(row.request) for row in rows}
    return {
        number for number, given in requests.items() if given and STORED_WORKFLOW not in given.get("parameters", {})
    }
