"""Ledger: what clients were told and saw, and what must be true of it when everything is over. Pure.

`find_wrongs` compares it with what the engine drew (the tally), what receivers took and when something was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.nodes import Stroke
from tests.faults.peers import Receipt

ORDER = {"pending": 0, "processing": 1, "generating": 2, "generated": 3}
FINAL_ORDER = 4
RUNS_OF_ITS_OWN = 2
"""Runs that a job has for its own faults; each kill from outside may add one."""

MAX_OUTSIDE_LOSSES = 10
"""Kills under one job after which it may fail."""
SETTLE_SECONDS = 2.0
"""A kill less than this after a line of the tally may have come before the front could have known of it."""


@dataclass(slots=True)
class Entry:
    """One job as its client knows it. `seen`: the statuses it was shown, each change once."""

    job_id: str
    has_webhook: bool = False
    is_acknowledged: bool = False
    cancel_asked: bool = False
    cancel_promised: bool = False
    seen: list[str] = field(default_factory=list)
    result: Mapping[str, Any] = field(default_factory=dict)
    was_lost: bool = False

    @property
    def has_ended(self) -> bool:
        return bool(self.seen) and self.seen[-1] not in ORDER

    def see(self, http_status: int, result: Mapping[str, Any]) -> None:
        """Note the answer of `/result` or a generate route."""
        if http_status == 404:
            self.was_lost = self.was_lost or self.is_acknowledged
            return
        status = str(result["status"])
        if not self.seen or self.seen[-1] != status:
            self.seen.append(status)
        if status not in ORDER:
            self.result = result


def unfinished(entries: Iterable[Entry]) -> list[Entry]:
    """Acknowledged, and not seen to have ended."""
    return [entry for entry in entries if entry.is_acknowledged and not entry.has_ended]


def owed(entries: Iterable[Entry], receipts: Sequence[Receipt]) -> list[Entry]:
    """Acknowledged, and no receiver has taken their webhook."""
    taken = {receipt.job_id for receipt in receipts if receipt.was_taken}
    return [entry for entry in entries if entry.is_acknowledged and entry.has_webhook and entry.job_id not in taken]


def find_wrongs(
    entries: Sequence[Entry],
    strokes: Sequence[Stroke],
    receipts: Sequence[Receipt],
    kills: Sequence[float],
    settle_seconds: float = SETTLE_SECONDS,
) -> list[str]:
    """Return all losses, doubles and steps backwards, one line each. `kills` are seconds since the epoch."""
    by_text: dict[str, list[Stroke]] = {}
    for stroke in strokes:
        by_text.setdefault(stroke.text, []).append(stroke)
    wrongs: list[str] = []
    for entry in entries:
        if entry.is_acknowledged:
            drawn = _Drawn(by_text.get(entry.job_id, []), kills, settle_seconds)
            wrongs += [f"{entry.job_id}: {words}" for words in [*_about_states(entry), *_about_drawing(entry, drawn)]]
            wrongs += [f"{entry.job_id}: {words}" for words in _about_webhooks(entry, receipts)]
    return wrongs


def _about_states(entry: Entry) -> list[str]:
    wrong = []
    if entry.was_lost:
        wrong.append("was acknowledged and then unknown")
    if not entry.has_ended:
        wrong.append(f"has not ended: {entry.seen}")
    places = [ORDER.get(status, FINAL_ORDER) for status in entry.seen]
    if places != sorted(places) or places.count(FINAL_ORDER) > 1:
        wrong.append(f"was shown going backwards: {entry.seen}")
    if entry.cancel_promised and entry.seen[-1] != "cancelled":
        wrong.append(f"was promised to be cancelled and is {entry.seen[-1]}")
    if entry.has_ended and entry.seen[-1] == "cancelled" and not entry.cancel_asked:
        wrong.append("was cancelled by nobody")
    return wrong


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The tally's record of one job."""

    strokes: Sequence[Stroke]
    kills: Sequence[float]
    settle_seconds: float

    def was_cut_off(self, stroke: Stroke) -> bool:
        return any(stroke.at - 0.001 <= kill < stroke.at + self.settle_seconds for kill in self.kills)

    @property
    def runs(self) -> list[Stroke]:
        return [stroke for stroke in self.strokes if not stroke.is_end]

    @property
    def num_known_runs(self) -> int:
        """Those of which the front had time to write down that they had begun."""
        return sum(1 for stroke in self.runs if not self.was_cut_off(stroke))

    @property
    def was_drawn_after_the_end(self) -> bool:
        ends = [stroke.at for stroke in self.strokes if stroke.is_end and not self.was_cut_off(stroke)]
        return any(run.at > end for end in ends for run in self.runs)

    @property
    def is_excused(self) -> bool:
        """True if runs were lost so often that the job may have failed, though a kill is not its doing."""
        return len(self.runs) > MAX_OUTSIDE_LOSSES

    @property
    def max_runs(self) -> int:
        return max(RUNS_OF_ITS_OWN, 1 + len(self.kills))


def _about_drawing(entry: Entry, drawn: _Drawn) -> list[str]:
    wrong = []
    status = entry.seen[-1] if entry.seen else ""
    if drawn.was_drawn_after_the_end:
        wrong.append("was finished and drawn again")
    if drawn.num_known_runs > drawn.max_runs:
        wrong.append(f"was run {drawn.num_known_runs} times")
    if status == "completed" and not drawn.runs:
        wrong.append("is completed and was never drawn")
    if status in ("failed", "timeout"):
        error = entry.result.get("error", {})
        if error.get("status") != 502 or not drawn.is_excused:
            wrong.append(f"is {status} after {len(drawn.runs)} runs: {error}")
    return wrong


def _about_webhooks(entry: Entry, receipts: Sequence[Receipt]) -> list[str]:
    mine = [receipt for receipt in receipts if receipt.job_id == entry.job_id]
    wrong = []
    if entry.has_webhook and not any(receipt.was_taken for receipt in mine):
        wrong.append("its webhook never came")
    if not entry.has_webhook and mine:
        wrong.append("a webhook came that nobody wanted")
    if len({receipt.webhook_id for receipt in mine}) > 1:
        wrong.append("its webhook came under several ids")
    if {receipt.status for receipt in mine} - {entry.seen[-1] if entry.seen else ""}:
        wrong.append(f"its webhook said {sorted({receipt.status for receipt in mine})}, it is {entry.seen[-1:]}")
    return wrong
