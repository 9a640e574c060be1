"""The ledger finds every kind of loss that it is there for, and nothing in a history that is in order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.ledger import Entry, find_wrongs
from tests.faults.nodes import Stroke
from tests.faults.peers import Receipt

RUN = [Stroke(False, "one", 10.0), Stroke(True, "one", 11.0)]
KILLED_RUN = [Stroke(False, "one", 5.0)]
RECEIPT = Receipt("msg", "one", "completed", True)


def entry(*seen: str, error_status: int = 502, **fields: Any) -> Entry:
    made = Entry("one", is_acknowledged=True, **fields)
    for status in seen:
        made.see(200, {"status": status, "error": {"status": error_status}})
    return made


@pytest.mark.parametrize(
    ("of", "strokes", "receipts", "kills"),
    [
        (entry("pending", "generating", "completed"), RUN, [], []),
        (entry("completed", has_webhook=True), KILLED_RUN + RUN, [RECEIPT, RECEIPT], [5.1]),
        (entry("completed"), [Stroke(False, "one", 3.0), *KILLED_RUN, *RUN], [], [3.1, 5.1]),
        (entry("failed"), [Stroke(False, "one", at) for at in range(11)], [], [at + 0.1 for at in range(11)]),
        (entry("cancelled", cancel_asked=True), [], [], []),
    ],
    ids=["undisturbed", "killed while running", "killed twice while running", "killed very often", "cancelled"],
)
def test_a_history_in_order_has_nothing_wrong(
    of: Entry, strokes: list[Stroke], receipts: list[Receipt], kills: list[float]
) -> None:
    assert find_wrongs([of], strokes, receipts, kills) == []


@pytest.mark.parametrize(
    ("of", "strokes", "receipts", "words"),
    [
        (entry("pending"), RUN, [], "has not ended"),
        (entry("completed", "generating", "completed"), RUN, [], "going backwards"),
        (entry("cancelled", "completed", cancel_asked=True), RUN, [], "going backwards"),
        (entry("completed", cancel_asked=True, cancel_promised=True), RUN, [], "promised"),
        (entry("cancelled"), [], [], "cancelled by nobody"),
        (entry("completed"), [*RUN, Stroke(False, "one", 20.0)], [], "drawn again"),
        (entry("completed"), [Stroke(False, "one", at) for at in (1.0, 2.0, 3.0)], [], "was run 3 times"),
        (entry("completed"), [], [], "never drawn"),
        (entry("failed"), RUN, [], "is failed after 1 runs"),
        (entry("failed"), [*KILLED_RUN, *KILLED_RUN], [], "is failed after 2 runs"),
        (entry("failed", error_status=500), [*KILLED_RUN, *KILLED_RUN], [], "is failed after 2 runs"),
        (entry("completed", has_webhook=True), RUN, [], "never came"),
        (entry("completed"), RUN, [RECEIPT], "nobody wanted"),
        (entry("completed", has_webhook=True), RUN, [RECEIPT, Receipt("b", "one", "completed", True)], "several ids"),
        (entry("completed", has_webhook=True), RUN, [Receipt("msg", "one", "failed", True)], "its webhook said"),
    ],
)
def test_every_kind_of_loss_is_found(of: Entry, strokes: list[Stroke], receipts: list[Receipt], words: str) -> None:
    (wrong,) = find_wrongs([of], strokes, receipts, [])
    assert words in wrong


def test_an_acknowledged_job_that_is_unknown_later_is_found() -> None:
    of = entry("completed")
    of.see(404, {"status": "failed"})
    assert find_wrongs([of], RUN, [], []) == ["one: was acknowledged and then unknown"]
