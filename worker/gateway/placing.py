"""Placing: what a request needs and what workers have announced, put to the routing, and its answer as a stream. Pure.

Costs of prompts are those of `contract/graph/cost.py`, by the node list of a worker where one is known, and at the
price of the default family: a gateway knows the family of no model file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from darkroom.contract.graph.cost import price_of
from darkroom.contract.graph.work import PromptWork
from darkroom.worker.api.schemas import GenerateInput
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.gateway.routing import Need, Offer, Refusal, choose
from darkroom.worker.json.values import JsonObject

FETCH_SECONDS = 10.0  # to load a model that a worker has not used lately
CHARACTERS_OF_KEYS = 200
URGENT = 1
"""The lowest priority whose stream workers look into first."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The stream of a request: of one model, "" for that of every worker, and by its priority."""

    model: str
    priority: int


def placed(given: GenerateInput, work: PromptWork, entries: Iterable[JsonObject], num_queued: int = 0) -> Placement:
    """Return the stream that a request goes to, where `num_queued` jobs are at the broker.

    It is the model's where the chosen worker has used it last: workers prefer the streams of such models. A deadline
    that the jobs before it would make it miss gives it the priority by which it goes before them. Raises
    RequestRejected for a deadline or a budget that no worker keeps; while no worker's speed is known all are accepted.
    """
    models = [file.name for file in work.graph.model_files]
    need = Need(price_of(work, {}).cost, models, given.deadline, given.max_cost)
    offers = [offer_of(entry) for entry in entries]
    chosen = choose(need, offers)
    if isinstance(chosen, Refusal):
        raise RequestRejected(list(_problems(need, chosen)))
    if chosen is None:
        return Placement("", given.priority)
    worker = next(offer for offer in offers if offer.worker == chosen.worker)
    has_stream = bool(models) and models[0] in worker.load_seconds and len(models[0]) <= CHARACTERS_OF_KEYS
    queue_seconds = num_queued * (chosen.end_seconds - chosen.start_seconds) / len(offers)
    is_late = given.deadline is not None and chosen.end_seconds + queue_seconds > given.deadline
    return Placement(models[0] if has_stream else "", max(given.priority, URGENT) if is_late else given.priority)


def offer_of(entry: JsonObject) -> Offer:
    """Return the offer of a worker's announcement; numbers that are none count as unknown."""
    models = entry.get("models")
    return Offer(
        str(entry.get("worker", "")),
        _number(entry, "speed"),
        _number(entry, "price_per_hour"),
        _number(entry, "wait_seconds"),
        {str(model): 0.0 for model in models} if isinstance(models, list) else {},
        FETCH_SECONDS,
    )


def _problems(need: Need, refusal: Refusal) -> Iterable[Problem]:
    if refusal.limit in ("deadline", "both") and need.deadline_seconds is not None:
        least = round(refusal.best_end_seconds, 1)
        message = (
            f"deadline: no worker would be done by then; got {need.deadline_seconds:g} s, expected at least {least:g}"
        )
        yield Problem(message, field="input.deadline", type="too_soon", allowed={"minimum": least})
    if refusal.limit in ("max_cost", "both") and need.max_cost is not None:
        cheapest = round(refusal.best_cost, 6)
        message = f"max_cost: no worker is as cheap; got {need.max_cost:g}, expected at least {cheapest:g}"
        yield Problem(message, field="input.max_cost", type="too_cheap", allowed={"minimum": cheapest})


def _number(entry: Mapping[str, object], name: str) -> float:
    value = entry.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(value) if is_number and isinstance(value, int | float) else 0.0
