"""Ledger: request data for Vast's autoscaler, and the sums over it. Pure: times are given.

A request is open from its acceptance until its job ends; a session is one request with the cost that it was created
with. A request within a session counts in the sums and is not reported individually. Reported sums are subtracted only
when the report was delivered, so changes in the meantime are not lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from darkroom.worker.autoscaler.autoscaler import Caller

REMEMBERED_REQNUMS = 10_000
MAX_ENDED = 10_000  # limit of the backlog while the autoscaler does not reply


class Ending(StrEnum):
    """Outcome of a request, in the autoscaler's terms."""

    SUCCESS = "Success"
    ERROR = "Error"
    CANCELLED = "Cancelled"
    REJECTED = "Rejected"

    @property
    def counts_as_success(self) -> bool:
        """True unless the worker failed: a client that left is not the worker's fault."""
        return self in (Ending.SUCCESS, Ending.CANCELLED)


@dataclass(slots=True)
class Entry:
    """One request. Times are Unix seconds, 0.0 where not reached."""

    caller: Caller
    cost: float
    is_session: bool = False
    entered_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    ending: Ending = Ending.SUCCESS

    @property
    def is_reported(self) -> bool:
        """True if this request is reported to the autoscaler individually."""
        return self.caller.request_idx is not None and (self.is_session or self.caller.session_id is None)

    def as_json(self) -> dict[str, object]:
        return {
            "request_idx": self.caller.request_idx,
            "success": self.ending.counts_as_success,
            "status": self.ending.value,
            "entered_queue_at": self.entered_at,
            "work_started_at": self.started_at,
            "work_completed_at": self.ended_at,
        }


@dataclass(frozen=True, slots=True)
class CostTotals:
    """Costs since the last delivered report."""

    received: float = 0.0
    cancelled: float = 0.0
    done: float = 0.0
    rejected: float = 0.0

    def minus(self, other: CostTotals) -> CostTotals:
        return CostTotals(
            self.received - other.received,
            self.cancelled - other.cancelled,
            self.done - other.done,
            self.rejected - other.rejected,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """Snapshot of the ledger for a report."""

    sums: CostTotals
    load: float
    num_working: int
    num_received: int
    working_request_idxs: tuple[int, ...]
    revision: int


@dataclass(slots=True)
class Ledger:
    _open: dict[str, list[Entry]] = field(default_factory=dict)
    _ended: deque[Entry] = field(default_factory=lambda: deque(maxlen=MAX_ENDED))
    _sums: CostTotals = field(default_factory=CostTotals)
    _reqnums: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _num_received: int = 0
    _revision: int = 0
    _reported_revision: int = 0

    @property
    def has_news(self) -> bool:
        """True if anything has changed since the last delivered reading."""
        return self._revision != self._reported_revision

    def accept(self, key: str, entry: Entry) -> None:
        """Open a request under the id of its job or session. A further one for the same job adds no load."""
        entries = self._open.setdefault(key, [])
        if entries:
            entry.cost = 0.0
            entry.started_at = entries[0].started_at
        entries.append(entry)
        self._count_reqnum(entry)
        self._add(received=entry.cost)

    def start(self, key: str, now: float) -> None:
        for entry in self._open.get(key, ()):
            entry.started_at = entry.started_at or now

    def end(self, key: str, ending: Ending, now: float) -> None:
        for entry in self._open.pop(key, ()):
            entry.ending, entry.ended_at = ending, now
            if ending is Ending.CANCELLED:
                self._add(cancelled=entry.cost)
            elif ending is Ending.SUCCESS:
                self._add(done=entry.cost)
            self._leave(entry)

    def refuse(self, entry: Entry, ending: Ending) -> None:
        """Count a request that was answered without becoming a job."""
        entry.ending = ending
        self._count_reqnum(entry)
        if ending is Ending.REJECTED:
            self._add(rejected=entry.cost)
        self._leave(entry)

    def reading(self) -> Reading:
        entries = [entry for entries in self._open.values() for entry in entries if not self._is_in_session(entry)]
        reported = [entry for entry in entries if entry.is_reported]
        return Reading(
            sums=self._sums,
            load=sum(entry.cost for entry in entries),
            num_working=len(entries),
            num_received=self._num_received,
            working_request_idxs=tuple(
                entry.caller.request_idx for entry in reported if entry.caller.request_idx is not None
            ),
            revision=self._revision,
        )

    def delivered(self, reading: Reading) -> None:
        """Subtract a reading that has been delivered to the autoscaler."""
        self._sums = self._sums.minus(reading.sums)
        self._reported_revision = reading.revision

    @property
    def ended(self) -> tuple[Entry, ...]:
        """Ended requests whose end has not been delivered to the autoscaler."""
        return tuple(self._ended)

    def ends_delivered(self, entries: Iterable[Entry]) -> None:
        reported = {id(entry) for entry in entries}
        self._ended = deque((entry for entry in self._ended if id(entry) not in reported), maxlen=MAX_ENDED)

    def _leave(self, entry: Entry) -> None:
        self._revision += 1
        if entry.is_reported:
            self._ended.append(entry)

    def _add(self, *, received: float = 0.0, cancelled: float = 0.0, done: float = 0.0, rejected: float = 0.0) -> None:
        sums = self._sums
        self._sums = replace(
            sums,
            received=sums.received + received,
            cancelled=sums.cancelled + cancelled,
            done=sums.done + done,
            rejected=sums.rejected + rejected,
        )
        self._revision += 1

    def _count_reqnum(self, entry: Entry) -> None:
        """Count each request number once, as far back as numbers are remembered."""
        reqnum = entry.caller.reqnum
        if reqnum is None or self._is_in_session(entry):
            return
        if reqnum not in self._reqnums:
            self._num_received += 1
        self._reqnums[reqnum] = None
        self._reqnums.move_to_end(reqnum)
        if len(self._reqnums) > REMEMBERED_REQNUMS:
            self._reqnums.popitem(last=False)

    def _is_in_session(self, entry: Entry) -> bool:
        return entry.caller.session_id is not None and not entry.is_session
