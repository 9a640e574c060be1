"""Choices that an engine offers for its inputs, and the nearest one to a wrong name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from darkroom.contract.graph.facts import Facts
from darkroom.contract.nearest import nearest_name
from darkroom.worker.engines.later_nodes import find_later_node
from darkroom.worker.engines.outcome import allowed_by
from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject, object_at

MAX_HINTS = 30
NOT_IN_LIST = "value_not_in_list"
UNKNOWN_CLASSES = frozenset({"unknown_class", "missing_node_type", "invalid_prompt"})


def choices_in(object_info: JsonObject) -> Callable[[str, str], Sequence[str] | None]:
    """Return a lookup from node class and input to its choices.

    The lookup returns None for an input that is no choice, or that takes files sent along.
    """

    def lookup(class_type: str, input_name: str) -> Sequence[str] | None:
        for inputs in object_at(object_info, class_type, "input").values():
            config = object_at(inputs).get(input_name)
            if isinstance(config, list | tuple) and config:
                options = config[1] if len(config) > 1 and isinstance(config[1], Mapping) else {}
                allowed = allowed_by(config)
                takes_files = any(name.endswith("_upload") and value for name, value in options.items())
                return allowed if isinstance(allowed, list) and not takes_files else None
        return None

    return lookup


def choices_of_kind(object_info: JsonObject, kind: str) -> Sequence[str]:
    """Return the model files of one kind, as the first class that loads such files offers them; none without one."""
    facts, lookup = Facts(object_info), choices_in(object_info)
    for class_type in object_info:
        for name, folder in facts.of(class_type).models.items():
            if folder == kind and (found := lookup(class_type, name)) is not None:
                return found
    return ()


def with_hints(problems: Iterable[Problem], object_info: JsonObject) -> list[Problem]:
    """Return the problems, with the nearest valid name added to those of a wrong name.

    A node of a later ComfyUI is named as that.

    Only the first of very many get one: to compare thousands of names with all choices takes seconds.
    """
    listed = list(problems)
    return [_with_hint(problem, object_info) for problem in listed[:MAX_HINTS]] + listed[MAX_HINTS:]


def _with_hint(problem: Problem, object_info: JsonObject) -> Problem:
    nearest = None
    if problem.type == NOT_IN_LIST and isinstance(problem.allowed, list):
        nearest = nearest_name(str((problem.extra or {}).get("received", "")), problem.allowed)
    elif problem.type in UNKNOWN_CLASSES and problem.class_type and problem.class_type not in object_info:
        later = find_later_node(problem.class_type)
        if later is not None:
            extra = {**(problem.extra or {}), "version": later.version, "is_partner": later.is_partner}
            return replace(problem, message=later.words, extra=extra)
        nearest = nearest_name(problem.class_type, object_info)
    return problem if nearest is None else replace(problem, message=f"{problem.message}; did you mean {nearest!r}?")
