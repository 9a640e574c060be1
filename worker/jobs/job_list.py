"""Pages of the job list: the filter, the cursor and the query. SQL without a connection.

Jobs are listed by arrival, the newest first. The query reads one range of an index for each pair of owner and state,
so a page costs the same among a thousand jobs and among a million.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from worker.jobs.database import JOBS
from worker.jobs.job import JobState, JobTimes

SHOWN_FAILURE = ("status", "code", "message")
_ORDER = JOBS.c.queued_ms.desc(), JOBS.c.number.desc()


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


def page_query(wanted: JobFilter, after: Cursor | None, limit: int) -> sa.Select[Any]:
    """Return the query of the first `limit` jobs that pass the filter, after a position."""
    numbers = _numbers_of_page(wanted, after, limit)
    columns = (JOBS.c[name] for name in ("id", "asked_id", "owner", "state", "message", "metadata", "times"))
    return (
        sa.select(*columns, JOBS.c.failure, JOBS.c.queued_ms, JOBS.c.number)
        .where(JOBS.c.number.in_(sa.select(numbers.c.number)))
        .order_by(*_ORDER)
    )


def _numbers_of_page(wanted: JobFilter, after: Cursor | None, limit: int) -> sa.Subquery:
    """Return the numbers of the page's jobs, from the indexes alone."""
    ranges = [
        _range(condition, wanted, after, limit)
        for state in wanted.states or tuple(JobState)
        for condition in _conditions(wanted.owners, state)
    ]
    found = sa.union_all(*(sa.select(one.c.queued_ms, one.c.number) for one in ranges)).subquery()
    return sa.select(found.c.number).order_by(found.c.queued_ms.desc(), found.c.number.desc()).limit(limit).subquery()


def _conditions(owners: tuple[str | None, ...], state: JobState) -> list[sa.ColumnElement[bool]]:
    is_in_state = JOBS.c.state == state.value
    if not owners:
        return [is_in_state]
    return [
        sa.and_(JOBS.c.owner.is_(None) if owner is None else JOBS.c.owner == owner, is_in_state) for owner in owners
    ]


def _range(condition: sa.ColumnElement[bool], wanted: JobFilter, after: Cursor | None, limit: int) -> sa.Subquery:
    query = sa.select(JOBS.c.queued_ms, JOBS.c.number).where(condition)
    if wanted.since_ms is not None:
        query = query.where(JOBS.c.queued_ms >= wanted.since_ms)
    if wanted.before_ms is not None:
        query = query.where(JOBS.c.queued_ms < wanted.before_ms)
    if after is not None:
        query = query.where(sa.tuple_(JOBS.c.queued_ms, JOBS.c.number) < (after.queued_ms, after.number))
    return query.order_by(*_ORDER).limit(limit).subquery()


def listed_job(row: Any) -> ListedJob:
    """Return the entry for a row of `page_query`."""
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
