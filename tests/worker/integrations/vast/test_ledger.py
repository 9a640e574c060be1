"""The sums and lists that Vast's autoscaler is sent, whatever order things happen in."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from darkroom.worker.autoscaler.autoscaler import Caller
from darkroom.worker.integrations.vast.ledger import Ending, Entry, Ledger


def entry(index: int, cost: float = 100.0, session_id: str | None = None) -> Entry:
    return Entry(Caller(request_idx=index, reqnum=index, session_id=session_id), cost, entered_at=1.0)


def test_a_second_request_for_the_same_job_brings_no_load_and_ends_with_it() -> None:
    ledger = Ledger()
    ledger.accept("job", entry(1))
    ledger.start("job", 2.0)
    ledger.accept("job", entry(2))
    reading = ledger.reading()
    assert (reading.load, reading.num_working, reading.working_request_idxs) == (100.0, 2, (1, 2))
    ledger.end("job", Ending.SUCCESS, 3.0)
    assert [(end.caller.request_idx, end.started_at, end.ended_at) for end in ledger.ended] == [(1, 2, 3), (2, 2, 3)]
    assert ledger.reading().sums.done == 100.0


def test_a_request_within_a_session_is_in_the_sums_and_nowhere_else() -> None:
    ledger = Ledger()
    ledger.accept("job", entry(1, session_id="s"))
    reading = ledger.reading()
    assert (reading.load, reading.num_working, reading.num_received, reading.working_request_idxs) == (0, 0, 0, ())
    assert reading.sums.received == 100.0
    ledger.end("job", Ending.SUCCESS, 3.0)
    assert ledger.ended == () and ledger.reading().sums.done == 100.0


def test_what_happens_while_a_report_is_under_way_is_in_the_next() -> None:
    ledger = Ledger()
    ledger.accept("a", entry(1))
    reading, ended = ledger.reading(), ledger.ended
    ledger.accept("b", entry(2, cost=50.0))
    ledger.end("a", Ending.SUCCESS, 2.0)
    ledger.delivered(reading)
    ledger.ends_delivered(ended)
    assert ledger.has_news
    assert (ledger.reading().sums.received, ledger.reading().sums.done) == (50.0, 100.0)
    assert [end.caller.request_idx for end in ledger.ended] == [1]


@pytest.mark.parametrize(("ending", "is_success"), [(Ending.ERROR, False), (Ending.CANCELLED, True)])
def test_what_did_not_succeed_is_not_done(ending: Ending, is_success: bool) -> None:
    ledger = Ledger()
    ledger.accept("a", entry(1))
    ledger.end("a", ending, 2.0)
    assert ledger.reading().sums.done == 0.0
    told = ledger.ended[0].as_json()
    assert (told["status"], told["success"]) == (ending.value, is_success)


def test_a_number_that_came_before_is_counted_once() -> None:
    ledger = Ledger()
    for key, index in (("a", 1), ("b", 1), ("c", 2)):
        ledger.accept(key, entry(index))
    ledger.refuse(entry(3), Ending.REJECTED)
    assert ledger.reading().num_received == 3


KEYS = st.sampled_from(["a", "b", "c"])


class Delivery(RuleBasedStateMachine):
    """Whatever is accepted, ended, reported or lost on the way: the autoscaler's sums are the true ones in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.received = self.done = self.told_received = self.told_done = 0.0
        self.open: dict[str, float] = {}
        self.next_index = 1
        self.told_ends: list[int | None] = []

    @rule(key=KEYS, cost=st.integers(1, 400))
    def accept(self, key: str, cost: int) -> None:
        self.ledger.accept(key, entry(self.next_index, float(cost)))
        self.next_index += 1
        if key not in self.open:
            self.open[key] = cost
            self.received += cost

    @rule(key=KEYS, ending=st.sampled_from([Ending.SUCCESS, Ending.ERROR]))
    def end(self, key: str, ending: Ending) -> None:
        self.ledger.end(key, ending, 5.0)
        cost = self.open.pop(key, 0.0)
        self.done += cost if ending is Ending.SUCCESS else 0.0

    @rule(is_lost=st.booleans())
    def report(self, is_lost: bool) -> None:
        reading, ended = self.ledger.reading(), self.ledger.ended
        if is_lost:
            return
        self.told_received += reading.sums.received
        self.told_done += reading.sums.done
        self.told_ends += [end.caller.request_idx for end in ended]
        self.ledger.delivered(reading)
        self.ledger.ends_delivered(ended)

    @invariant()
    def nothing_is_lost_or_told_twice(self) -> None:
        reading = self.ledger.reading()
        assert self.told_received + reading.sums.received == self.received
        assert self.told_done + reading.sums.done == self.done
        assert reading.load == sum(self.open.values())
        told = self.told_ends + [end.caller.request_idx for end in self.ledger.ended]
        assert len(told) == len(set(told))
        assert len(told) + reading.num_working == self.next_index - 1


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)
