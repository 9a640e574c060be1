"""Warnings about a request that is accepted: what of it has no effect, or another one than it seems. Pure.

A warning has the form of a problem: field, type and message, and the nearest name that exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from pydantic import BaseModel

from darkroom.contract.graph.cost import Price
from darkroom.contract.nearest import nearest_name
from darkroom.worker.api.schemas import GenerateInput, StoresInput, WebhookInput
from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject, object_at

RequestWarning = dict[str, object]

MAX_WARNINGS: Final = 20
MAX_NAME_LENGTH: Final = 100
LATENT_CELL_PX: Final = 8
SIDES: Final = ("width", "height")
NESTED: Final[Mapping[str, type[BaseModel]]] = {
    **{name: get_args(store.annotation)[0] for name, store in StoresInput.model_fields.items()},
    "webhook": WebhookInput,
}


def find_form_warnings(payload: JsonObject) -> list[RequestWarning]:
    """Return warnings for names in a body that no part of the worker reads."""
    given = object_at(payload, "input")
    known = tuple(GenerateInput.model_fields)
    found = [_unknown(name, f"input.{name}", known) for name in given if name not in known]
    for part, model in NESTED.items():
        fields = tuple(model.model_fields)
        found += [
            _unknown(name, f"input.{part}.{name}", fields) for name in object_at(given, part) if name not in fields
        ]
    found += [_misplaced(name) for name in payload if name in known]
    return found[:MAX_WARNINGS]


def find_misspelt(payload: JsonObject) -> list[Problem]:
    """Return the fields of a refused body that are near a known name: often the reason of the refusal."""
    return [
        Problem(str(item["message"]), field=str(item["field"]), type=str(item["type"]))
        for item in find_form_warnings(payload)
        if item["type"] == "unknown_field" and "nearest" in item
    ]


def id_warning(asked: str, used: str, place: str) -> list[RequestWarning]:
    """Return a warning where a request id is replaced because it cannot be part of a path; `place` is its field."""
    if asked == used:
        return []
    message = (
        f"request_id: not usable as it is; got {asked[:MAX_NAME_LENGTH]!r}, replaced by {used!r}; expected letters, "
        "digits, '.', '_' and '-'"
    )
    return [{"field": place, "type": "request_id_replaced", "message": message, "used": used}]


def find_size_warnings(prompt: JsonObject, object_info: JsonObject) -> list[tuple[str, str, RequestWarning]]:
    """Return warnings for sides of new latents that are not whole cells, each with its node id and input."""
    found: list[tuple[str, str, RequestWarning]] = []
    for node_id in prompt:
        node = object_at(prompt, node_id)
        outputs = object_at(object_info, str(node.get("class_type"))).get("output")
        if not isinstance(outputs, list) or "LATENT" not in outputs:
            continue
        for side in SIDES:
            value = object_at(node, "inputs").get(side)
            if isinstance(value, int) and not isinstance(value, bool) and value % LATENT_CELL_PX:
                low = value - value % LATENT_CELL_PX
                message = (
                    f"{side}: not a multiple of {LATENT_CELL_PX}, so the image gets another size; got {value}, "
                    f"expected a number such as {low or LATENT_CELL_PX} or {low + LATENT_CELL_PX}"
                )
                found.append((node_id, side, {"node_id": node_id, "field": side, "type": "size", "message": message}))
    return found[:MAX_WARNINGS]


def assumed_cost_warnings(price: Price) -> list[RequestWarning]:
    """Return a warning for each model and sampler whose cost is not known and was assumed."""
    assumed = [(name, "its family is not known, so it is priced as the default one") for name in price.models]
    assumed += [(name, "its evaluations are not known, so a step is priced as one") for name in price.samplers]
    return [
        {"field": "input", "type": "cost_assumed", "message": f"{name[:MAX_NAME_LENGTH]}: {words}"}
        for name, words in assumed[:MAX_WARNINGS]
    ]


def warning_of(problem: Problem) -> RequestWarning:
    """Return a problem that does not refuse a request as a warning."""
    return {"field": problem.field, "type": problem.type, "message": problem.message}


def _unknown(name: str, place: str, known: Iterable[str]) -> RequestWarning:
    nearest = nearest_name(name, known)
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    shown: Mapping[str, object] = {"nearest": nearest} if nearest else {}
    message = f"{name[:MAX_NAME_LENGTH]}: unknown field, without effect{hint}"
    return {"field": place[: MAX_NAME_LENGTH * 2], "type": "unknown_field", "message": message, **shown}


def _misplaced(name: str) -> RequestWarning:
    message = f"{name}: without effect beside `input`; expected inside it"
    return {"field": name, "type": "misplaced_field", "message": message, "nearest": f"input.{name}"}
