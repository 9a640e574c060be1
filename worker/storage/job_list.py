"""Pages of the job list: the filter, the cursor and the query. SQL without a connection.

Jobs are listed by arrival, the newest first. The query reads one range of an index for each pair of owner and state,
so a page costs the same among a thousand jobs and among a million.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.storage.database import JOBS
from darkroom.worker.storage.job import JobState, JobTimes

Read = Callable[[sa.Select[Any]], Awaitable[list[sa.Row[Any]]]]
"""Returns the rows of a query."""

SHOWN_FAILURE = ("status", "code", "message")
DETAILED_AT_ONCE = 10
"""Jobs whose details one query reads."""

MAX_READ_LENGTH = 256 * 1024
"""Characters of a prompt that a search and the details of a list read: images within prompts may be large."""


class CursorInvalid(ValueError):
    """A cursor that no page has returned."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in the list: the last job of a page."""

    queued_ms: int
    number: int

    @property
    def text(self) -> str:
        return base64.urlsafe_b64encode(f"{self.queued_ms}.{self.number}".encode()).decode().rstrip("=")

    @staticmethod
    def of(text: str) -> Cursor:
        """Return the position of a cursor's text. Raises CursorInvalid."""
        try:
            plain = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
            queued_ms, number = plain.split(".")
            cursor = Cursor(int(queued_ms), int(number))
        except (binascii.Error, ValueError):
            raise CursorInvalid(text) from None
        if cursor.text != text or max(abs(cursor.queued_ms), abs(cursor.number)) >= 2**63:
            raise CursorInvalid(text)
        return cursor


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Jobs to list. Empty `owners` or `states`: all. Times are epoch milliseconds of arrival, `before_ms` excluded.

    The owner None stands for jobs older than ownership.
    """

    owners: tuple[str | None, ...] = ()
    states: tuple[JobState, ...] = ()
    since_ms: int | None = None
    before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job of the list, without its prompt and outputs."""

    id: str
    asked_id: str
    owner: str | None
    state: JobState
    message: str
    metadata: Mapping[str, Any]
    timings: Mapping[str, Any]
    failure: Mapping[str, Any] | None
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class JobDetails:
    """Request and results of a listed job; `outputs` are its records as stored."""

    modifier: str
    parameters: Mapping[str, Any]
    prompt: Mapping[str, Any]
    outputs: tuple[Mapping[str, Any], ...]


async def read_page(
    read: Read, wanted: JobFilter, after: Cursor | None, limit: int, listed: sa.Table = JOBS
) -> list[ListedJob]:
    """Return the first `limit` jobs that pass the filter, after a position.

    `listed` is the table with the indexes of the list. Two queries: PostgreSQL plans the second one for the days of the
    page alone, since their times are in it.
    """
    positions = await read(positions_query(wanted, after, limit, listed))
    return [listed_job(row) for row in await read(rows_query(positions))] if positions else []


async def read_details(read: Read, jobs: Sequence[ListedJob]) -> dict[str, JobDetails]:
    """Return the details of listed jobs by their ids. A prompt or request above MAX_READ_LENGTH is left empty.

    Reads a few jobs at a time, so that other queries have their turn between them.
    """
    found: dict[str, JobDetails] = {}
    for start in range(0, len(jobs), DETAILED_AT_ONCE):
        part = jobs[start : start + DETAILED_AT_ONCE]
        times = [job.cursor.queued_ms for job in part]
        query = sa.select(JOBS.c.id, JOBS.c.outputs, *(first_characters(name) for name in ("request", "prompt"))).where(
            JOBS.c.number.in_([job.cursor.number for job in part]), JOBS.c.queued_ms.between(min(times), max(times))
        )
        found |= await off_loop(True, _parsed_details, await read(query))
    return found


def _parsed_details(rows: Sequence[sa.Row[Any]]) -> dict[str, JobDetails]:
    found = {}
    for row in rows:
        request = object_of(row.request)
        parameters = request.get("parameters")
        found[row.id] = JobDetails(
            modifier=str(request.get("modifier") or ""),
            parameters=parameters if isinstance(parameters, dict) else {},
            prompt=object_of(row.prompt),
            outputs=tuple(json.loads(row.outputs)),
        )
    return found


def first_characters(column: str) -> sa.Label[str]:
    """Return the first MAX_READ_LENGTH characters of a column of jobs, under its name."""
    return sa.func.substr(JOBS.c[column], 1, MAX_READ_LENGTH).label(column)


def object_of(text: str) -> dict[str, Any]:
    """Return the JSON object of a column; empty for a text that was cut off."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def rows_query(positions: Sequence[sa.Row[Any]]) -> sa.Select[Any]:
    """Return the query of the jobs at the positions, the newest first."""
    columns = ("id", "asked_id", "owner", "state", "message", "metadata", "times", "failure", "queued_ms", "number")
    newest_ms, oldest_ms = positions[0].queued_ms, positions[-1].queued_ms
    return (
        sa.select(*(JOBS.c[name] for name in columns))
        .where(JOBS.c.number.in_([row.number for row in positions]), JOBS.c.queued_ms.between(oldest_ms, newest_ms))
        .order_by(*_order(JOBS))
    )


def positions_query(wanted: JobFilter, after: Cursor | None, limit: int, listed: sa.Table) -> sa.Select[Any]:
    """Return the query of time and number of the page's jobs, from the indexes alone."""
    ranges = [
        _range(condition, wanted, after, limit, listed)
        for state in wanted.states or tuple(JobState)
        for condition in _conditions(wanted.owners, state, listed)
    ]
    found = sa.union_all(*(sa.select(one.c.queued_ms, one.c.number) for one in ranges)).subquery()
    return sa.select(found.c.queued_ms, found.c.number).order_by(*_order(found)).limit(limit)


def _order(rows: sa.FromClause) -> tuple[sa.ColumnElement[int], sa.ColumnElement[int]]:
    return rows.c.queued_ms.desc(), rows.c.number.desc()


def _conditions(owners: tuple[str | None, ...], state: JobState, listed: sa.Table) -> list[sa.ColumnElement[bool]]:
    is_in_state = listed.c.state == state.value
    if not owners:
        return [is_in_state]
    return [
        sa.and_(listed.c.owner.is_(None) if owner is None else listed.c.owner == owner, is_in_state) for owner in owners
    ]


def _range(
    condition: sa.ColumnElement[bool], wanted: JobFilter, after: Cursor | None, limit: int, listed: sa.Table
) -> sa.Subquery:
    query = sa.select(listed.c.queued_ms, listed.c.number).where(condition)
    if wanted.since_ms is not None:
        query = query.where(listed.c.queued_ms >= wanted.since_ms)
    if wanted.before_ms is not None:
        query = query.where(listed.c.queued_ms < wanted.before_ms)
    if after is not None:
        query = query.where(sa.tuple_(listed.c.queued_ms, listed.c.number) < (after.queued_ms, after.number))
    return query.order_by(*_order(listed)).limit(limit).subquery()


def listed_job(row: Any) -> ListedJob:
    """Return the entry for a row of jobs."""
    failure = None if row.failure is None else json.loads(row.failure)
    return ListedJob(
        id=row.id,
        asked_id=row.asked_id,
        owner=row.owner,
        state=JobState(row.state),
        message=row.message,
        metadata=json.loads(row.metadata),
        timings=JobTimes(**json.loads(row.times)).as_json(),
        failure=None if failure is None else {name: failure.get(name) for name in SHOWN_FAILURE},
        cursor=Cursor(row.queued_ms, row.number),
    )
