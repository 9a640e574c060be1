"""CommitGroup: what one commit writes, by the job that it belongs to, and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from darkroom.worker.storage.database import changing_row, whole_row
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.webhook_rows import Write


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to insert and to update, and other writes, of one transaction."""

    new: list[dict[str, object]]
    changed: list[dict[str, object]]
    writes: list[Write]

    @property
    def is_empty(self) -> bool:
        return not (self.new or self.changed or self.writes)


@dataclass(slots=True)
class CommitGroup:
    """The content of the next commit and its futures.

    Insertions and changes wait for their write, other futures for the attempt. Every write and every future has an
    owner: the id of a job, or a generated name for writes that belong to no job.
    """

    new: dict[str, Job] = field(default_factory=dict)
    changed: dict[str, Job] = field(default_factory=dict)
    writes: dict[str, list[Write]] = field(default_factory=dict)
    inserted: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    written: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)
    tried: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)

    def merge(self, refused: CommitGroup) -> None:
        """Prepend the changes of a refused commit to those gathered since."""
        self.changed = {**refused.changed, **self.changed}
        self.writes = _joined(refused.writes, self.writes)
        self.written = _joined(refused.written, self.written)
        refused.changed, refused.writes, refused.written = {}, {}, {}

    @property
    def owners(self) -> list[str]:
        return list(dict.fromkeys(owner for held in self._fields() for owner in held))

    def parts(self) -> list[CommitGroup]:
        """Split the group into one group for each owner."""
        return [
            CommitGroup(*({owner: held[owner]} if owner in held else {} for held in self._fields()))
            for owner in self.owners
        ]

    def _fields(self) -> tuple[dict[str, Any], ...]:
        return self.new, self.changed, self.writes, self.inserted, self.written, self.tried

    def rows(self) -> Rows:
        """Return the rows of the jobs as they are now."""
        return Rows(
            [whole_row(job) for job in self.new.values()],
            [
                {"job_id": id_, "job_queued_ms": job.times.queued_at_ms, **changing_row(job)}
                for id_, job in self.changed.items()
                if id_ not in self.new
            ],
            [write for owned in self.writes.values() for write in owned],
        )

    def settle(self, refusal: Exception | None = None) -> None:
        """Resolve all futures, with an exception if there is a refusal."""
        waiting = (future for held in (*self.written.values(), *self.tried.values()) for future in held)
        for future in (*self.inserted.values(), *waiting):
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal)
                future.exception()  # marks the exception as retrieved if no task awaits the future


def _joined(first: Mapping[str, list[Any]], second: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {owner: [*first.get(owner, ()), *second.get(owner, ())] for owner in (*first, *second)}
