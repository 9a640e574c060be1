"""Routing: which worker a job goes to, by the time at which it would end there and by what that costs. Pure.

Work is in pixel-steps: width times height times sampling steps. Money is in whatever unit the workers' prices have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

SECONDS_PER_HOUR = 3600.0
MODEL_WAIT_SECONDS = 30.0  # how much longer a job waits for a worker that has its models


class Policy(Enum):
    """Rule by which a worker is chosen. Deadlines and budgets hold under each of them."""

    FIRST_FREE = "first free"
    MODEL_FIRST = "model first"
    SOONEST = "soonest"
    CHEAPEST = "cheapest"
    BALANCED = "balanced"


@dataclass(frozen=True, slots=True)
class Offer:
    """A worker as it has announced itself. `speed` is in pixel-steps a second, 0 if it is not known.

    `wait_seconds` is the time until it would begin; `load_seconds` that to load a model, 0 for one on the device. A
    model that is not in it takes `fetch_seconds`.
    """

    worker: str
    speed: float
    price_per_hour: float = 0.0
    wait_seconds: float = 0.0
    load_seconds: dict[str, float] = field(default_factory=dict)
    fetch_seconds: float = 0.0

    def seconds_to_load(self, models: Iterable[str]) -> float:
        return sum(self.load_seconds.get(model, self.fetch_seconds) for model in models)


@dataclass(frozen=True, slots=True)
class Need:
    """A job to place. `deadline_seconds` counts from now, `max_cost` is for its time at the worker; None: no limit."""

    work: float
    models: Sequence[str] = ()
    deadline_seconds: float | None = None
    max_cost: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A job at a worker: seconds from now to its start and to its end, and the price of the time between the two.

    `start_seconds` is when the worker turns to it; loading its models is a part of the job.
    """

    worker: str
    start_seconds: float
    end_seconds: float
    cost: float
    load_seconds: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Limits that no worker keeps: `deadline`, `max_cost` or both, each possible alone, and the best there is."""

    limit: str
    best_end_seconds: float
    best_cost: float


def estimate(need: Need, offer: Offer) -> Estimate:
    """Return the end and the cost of a job at a worker. Raises ValueError for an unknown speed."""
    if offer.speed <= 0:
        raise ValueError(f"speed: not known of {offer.worker}; got {offer.speed:g}, expected more than 0")
    load_seconds = offer.seconds_to_load(need.models)
    seconds = load_seconds + need.work / offer.speed
    cost = seconds * offer.price_per_hour / SECONDS_PER_HOUR
    return Estimate(offer.worker, offer.wait_seconds, offer.wait_seconds + seconds, cost, load_seconds)


def choose(
    need: Need, offers: Iterable[Offer], policy: Policy = Policy.BALANCED, value_per_hour: float | None = None
) -> Estimate | Refusal | None:
    """Return the destination of a job, the reason of its refusal, or None without a worker whose speed is known.

    `value_per_hour` is what an hour of waiting is worth under `BALANCED`; by default the dearest worker's price.
    """
    usable = [offer for offer in offers if offer.speed > 0]
    if not usable:
        return None
    estimates = [estimate(need, offer) for offer in usable]
    kept = [one for one in estimates if _is_in_time(one, need) and _is_affordable(one, need)]
    if not kept:
        return _refusal(need, estimates)
    worth = max(offer.price_per_hour for offer in usable) if value_per_hour is None else value_per_hour
    return _best(kept, policy, worth / SECONDS_PER_HOUR)


def _best(estimates: Sequence[Estimate], policy: Policy, worth: float) -> Estimate:
    """Return the best by a policy; `worth` is the value of a second."""
    if policy is Policy.FIRST_FREE:
        return min(estimates, key=lambda one: one.start_seconds)
    if policy is Policy.MODEL_FIRST:
        first = min(estimates, key=lambda one: one.start_seconds)
        limit = first.start_seconds + MODEL_WAIT_SECONDS
        loaded = [one for one in estimates if not one.load_seconds and one.start_seconds <= limit]
        return min(loaded, key=lambda one: one.start_seconds, default=first)
    if policy is Policy.SOONEST:
        return min(estimates, key=lambda one: (one.end_seconds, one.cost))
    if policy is Policy.CHEAPEST:
        return min(estimates, key=lambda one: (one.cost, one.end_seconds))
    return min(estimates, key=lambda one: one.cost + one.end_seconds * worth)


def _refusal(need: Need, estimates: Sequence[Estimate]) -> Refusal:
    in_time = any(_is_in_time(one, need) for one in estimates)
    affordable = any(_is_affordable(one, need) for one in estimates)
    limit = "deadline" if affordable and not in_time else "max_cost" if in_time and not affordable else "both"
    return Refusal(limit, min(one.end_seconds for one in estimates), min(one.cost for one in estimates))


def _is_in_time(one: Estimate, need: Need) -> bool:
    return need.deadline_seconds is None or one.end_seconds <= need.deadline_seconds


def _is_affordable(one: Estimate, need: Need) -> bool:
    return need.max_cost is None or one.cost <= need.max_cost
