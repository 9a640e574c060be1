"""The graph check for an engine that has none of ours: a prompt against its `/object_info`. Pure.

Checked: class, and of every node that an output needs its required inputs, links, types, ranges and choices. What only
the engine can know it still says itself: whether a file that a node finds without listing it (in a subfolder, or in
another folder, as in `a.png [output]`) is there, say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from worker.engine.outcome import allowed_by
from worker.errors import MAX_PROBLEMS, Problem

NUMBERS = {"INT": int, "FLOAT": float}
OWN_MODULE = "nodes"  # of the classes that come with ComfyUI's core


@dataclass(frozen=True, slots=True)
class FoundProblems:
    """The problems of a prompt that are listed, and the number of the others."""

    listed: tuple[Problem, ...] = ()
    num_unlisted: int = 0


def find_problems(
    prompt: Mapping[str, Any],
    object_info: Mapping[str, Any],
    pending_files: Collection[str] = (),
    only: Collection[str] | None = None,
) -> FoundProblems:
    """Find what is wrong with a prompt: the first `MAX_PROBLEMS` are listed, the rest counted.

    `pending_files` are choices that will exist by the time it runs; `only` these nodes are looked at, all if None.
    """
    needed, pending = _needed(prompt, object_info), frozenset(pending_files)
    problems = (
        problem
        for node_id, node in prompt.items()
        if only is None or node_id in only
        for problem in _node(node_id, node, prompt, object_info, is_needed=node_id in needed)
        if not _is_pending(problem, pending)
    )
    listed = list(islice(problems, MAX_PROBLEMS))
    if not listed and not needed:
        message = "Nothing to save: the workflow has no output node"
        return FoundProblems((Problem(message, field="workflow_json", type="prompt_no_outputs"),))
    return FoundProblems(tuple(listed), sum(1 for _ in problems))


def _needed(prompt: Mapping[str, Any], object_info: Mapping[str, Any]) -> set[str]:
    """The output nodes and all that they are linked to: the others are never looked at."""
    waiting = [node_id for node_id, node in prompt.items() if _declared(node, object_info).get("output_node")]
    needed: set[str] = set()
    while waiting:
        node_id = waiting.pop()
        node = prompt.get(node_id)
        if node_id in needed or not isinstance(node, Mapping):
            continue
        needed.add(node_id)
        inputs = node.get("inputs")
        waiting += [value[0] for value in inputs.values() if _is_link(value)] if isinstance(inputs, Mapping) else []
    return needed


def _declared(node: Any, object_info: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is known of a node's class; nothing for one that is unknown."""
    found: Mapping[str, Any] = object_info.get(str(node.get("class_type")), {}) if isinstance(node, Mapping) else {}
    return found


def _is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)


def _is_pending(problem: Problem, pending_files: Collection[str]) -> bool:
    return (
        problem.type == "value_not_in_list"
        and bool(problem.extra)
        and isinstance(received := (problem.extra or {})["received"], str)
        and received in pending_files
    )


def _node(
    node_id: str, node: Any, prompt: Mapping[str, Any], object_info: Mapping[str, Any], *, is_needed: bool
) -> Iterator[Problem]:
    if not isinstance(node, Mapping) or not isinstance(node.get("class_type"), str):
        yield Problem("A node is an object with class_type and inputs", node_id=node_id, type="invalid_prompt")
        return
    class_type = node["class_type"]
    declared = object_info.get(class_type)
    if declared is None:
        yield Problem(
            f"Unknown node class {class_type!r}", node_id=node_id, class_type=class_type, type="unknown_class"
        )
        return
    if not is_needed:
        return
    inputs = node.get("inputs") or {}
    if not isinstance(inputs, Mapping):
        yield Problem("inputs is an object", node_id=node_id, class_type=class_type, type="invalid_prompt")
        return
    sections = declared.get("input") or {}
    yield from _unknown_links(node_id, class_type, inputs, declared)
    for section in ("required", "optional"):
        for name, config in (sections.get(section) or {}).items():
            if name not in inputs:
                if section == "required":
                    yield Problem(
                        f"Required input is missing: {name}",
                        field=name,
                        node_id=node_id,
                        class_type=class_type,
                        type="required_input_missing",
                        allowed=allowed_by(config),
                    )
                continue
            found = _value_problem(inputs[name], config, prompt, object_info)
            if found is not None:
                kind, message = found
                yield Problem(
                    f"{message}: {name}",
                    field=name,
                    node_id=node_id,
                    class_type=class_type,
                    type=kind,
                    allowed=allowed_by(config),
                    extra={"received": inputs[name]},
                )


def _unknown_links(
    node_id: str, class_type: str, inputs: Mapping[str, Any], declared: Mapping[str, Any]
) -> Iterator[Problem]:
    """Find links under names that a class of the engine's own does not have: its call would fail.

    A pack's class may take names that it does not declare, and values under unknown names are passed over.
    """
    if declared.get("python_module") != OWN_MODULE:
        return
    sections = declared.get("input") or {}
    known = {name for section in sections.values() for name in section}
    for name in (name for name, value in inputs.items() if name not in known and _is_link(value)):
        yield Problem(
            f"Unknown linked input: {name}",
            field=name,
            node_id=node_id,
            class_type=class_type,
            type="unknown_input",
            allowed=[name for section in ("required", "optional") for name in sections.get(section) or ()],
        )


def _value_problem(
    value: Any, config: Any, prompt: Mapping[str, Any], object_info: Mapping[str, Any]
) -> tuple[str, str] | None:
    kind = config[0]
    options = config[1] if len(config) > 1 and isinstance(config[1], Mapping) else {}
    if _is_link(value):
        return _link_problem(value, kind, prompt, object_info)
    choices = kind if isinstance(kind, list) else options.get("options") if kind == "COMBO" else None
    if choices is not None:
        values = value if options.get("multiselect") and isinstance(value, list) else [value]
        is_file = any(str(name).endswith("_upload") and wanted for name, wanted in options.items())
        missing = [item for item in values if item not in choices and not (is_file and _is_elsewhere(item))]
        return ("value_not_in_list", f"Value {missing[0]!r} not in list") if missing else None
    if kind in NUMBERS:
        return _number_problem(value, NUMBERS[kind], options)
    return None


def _is_elsewhere(name: Any) -> bool:
    """Whether a node that lists files of the input folder itself may find this one although it is not in its list."""
    return isinstance(name, str) and ("/" in name or name.endswith((" [input]", " [output]", " [temp]")))


def _number_problem(value: Any, convert: type[int] | type[float], options: Mapping[str, Any]) -> tuple[str, str] | None:
    try:
        number = convert(value)
    except (TypeError, ValueError, OverflowError):
        return "invalid_input_type", f"Value {value!r} is not {'a whole number' if convert is int else 'a number'}"
    if "min" in options and number < options["min"]:
        return "value_smaller_than_min", f"Value {number} smaller than min of {options['min']}"
    if "max" in options and number > options["max"]:
        return "value_bigger_than_max", f"Value {number} bigger than max of {options['max']}"
    return None


def _link_problem(
    link: list[Any], kind: Any, prompt: Mapping[str, Any], object_info: Mapping[str, Any]
) -> tuple[str, str] | None:
    source = prompt.get(link[0])
    if not isinstance(source, Mapping):
        return "bad_linked_input", f"Linked node {link[0]!r} does not exist"
    class_type = source.get("class_type")
    declared = object_info.get(class_type) if isinstance(class_type, str) else None
    if declared is None:
        return None  # reported at that node
    given = declared.get("output") or []
    if not 0 <= link[1] < len(given):
        return "bad_linked_input", f"Node {link[0]!r} has no output {link[1]}"
    if isinstance(kind, str) and isinstance(given[link[1]], str) and not _fits(given[link[1]], kind):
        return "return_type_mismatch", f"Node {link[0]!r} gives {given[link[1]]}, wanted {kind}"
    return None


def _fits(given: str, wanted: str) -> bool:
    if "*" in (given, wanted):
        return True
    return bool({part.strip() for part in given.split(",")} & {part.strip() for part in wanted.split(",")})
