"""The choice of a worker: soonest, cheapest, within deadline and budget."""

from __future__ import annotations

import random

import pytest

from darkroom.worker.gateway.routing import Estimate, Need, Offer, Policy, Refusal, choose, estimate

BIG = Offer("big", speed=100.0, price_per_hour=36.0, wait_seconds=10.0, load_seconds={"a": 0.0}, fetch_seconds=5.0)
SMALL = Offer("small", speed=10.0, price_per_hour=1.8, load_seconds={"b": 0.0}, fetch_seconds=20.0)
IDLE = Offer("idle", speed=100.0, price_per_hour=36.0, fetch_seconds=60.0)


def chosen(need: Need, *offers: Offer, policy: Policy) -> str:
    found = choose(need, offers, policy)
    assert isinstance(found, Estimate)
    return found.worker


def test_an_estimate_has_wait_load_and_run() -> None:
    found = estimate(Need(1000.0, ("b",)), BIG)
    assert (found.start_seconds, found.load_seconds, found.end_seconds) == (10.0, 5.0, 25.0)
    assert found.cost == pytest.approx(15.0 * 36.0 / 3600)


def test_each_policy_takes_its_best() -> None:
    need = Need(1000.0, ("a",))
    assert chosen(need, BIG, SMALL, IDLE, policy=Policy.SOONEST) == "big"
    assert chosen(need, BIG, SMALL, IDLE, policy=Policy.CHEAPEST) == "small"
    assert chosen(need, BIG, SMALL, policy=Policy.FIRST_FREE) == "small"
    assert chosen(need, BIG, SMALL, policy=Policy.MODEL_FIRST) == "big"


def test_what_waiting_is_worth_decides_between_soon_and_cheap() -> None:
    need = Need(1000.0, ("b",))
    near = Offer("near", 100.0, 36.0, fetch_seconds=0.0)
    dear, cheap = (choose(need, (near, SMALL), Policy.BALANCED, value) for value in (100.0, 0.01))
    assert isinstance(dear, Estimate)
    assert isinstance(cheap, Estimate)
    assert (dear.worker, cheap.worker) == ("near", "small")


def test_a_deadline_rules_out_who_would_be_late_and_a_budget_who_is_too_dear() -> None:
    need = Need(1000.0, ("a",), deadline_seconds=30.0)
    assert chosen(need, BIG, SMALL, policy=Policy.CHEAPEST) == "big"
    assert chosen(Need(1000.0, ("a",), max_cost=0.08), BIG, SMALL, policy=Policy.SOONEST) == "small"


@pytest.mark.parametrize(
    ("need", "limit"),
    [
        (Need(1000.0, ("a",), deadline_seconds=1.0), "deadline"),
        (Need(1000.0, ("a",), max_cost=0.001), "max_cost"),
        (Need(1000.0, ("a",), deadline_seconds=30.0, max_cost=0.08), "both"),
    ],
)
def test_limits_that_nobody_keeps_are_named_with_the_best_there_is(need: Need, limit: str) -> None:
    found = choose(need, (BIG, SMALL))
    assert isinstance(found, Refusal)
    assert found.limit == limit
    assert found.best_end_seconds == 20.0
    assert found.best_cost == pytest.approx(0.06)


def test_nothing_is_chosen_without_a_known_speed() -> None:
    assert choose(Need(1.0), (Offer("new", 0.0),)) is None


def test_a_choice_always_keeps_its_limits() -> None:
    chance = random.Random(1)
    for _ in range(300):
        offers = [
            Offer(str(n), chance.uniform(1, 9), chance.uniform(0, 5), chance.uniform(0, 50), {}, chance.uniform(0, 9))
            for n in range(5)
        ]
        need = Need(chance.uniform(1, 99), ("a",), chance.uniform(1, 60), chance.uniform(0, 0.05))
        for policy in Policy:
            found = choose(need, offers, policy)
            kept = (need.deadline_seconds or 0.0, need.max_cost or 0.0)
            estimates = [estimate(need, offer) for offer in offers]
            fitting = [one for one in estimates if one.end_seconds <= kept[0] and one.cost <= kept[1]]
            assert isinstance(found, Estimate) == bool(fitting)
            assert found in fitting or isinstance(found, Refusal)
