"""Every problem that a node's inputs can have, in ComfyUI's words and explained for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from darkroom.contract.errors import Explanation, Problem
from darkroom.contract.graph.file_names import names_another_folder
from darkroom.contract.graph.spec import InputSpec, NodeRules

MAX_SHOWN_LENGTH = 2000
LONGEST_LIST_SHOWN = 20  # ComfyUI's form leaves longer lists of choices out
NUMBERS = {"INT": "a whole number", "FLOAT": "a number"}
Via = tuple[InputSpec, list[Any]] | None
"""The link that led to a node, and the input that has it."""


def range_problem(spec: InputSpec, value: object) -> Problem | None:
    """Return the problem of a value of the declared type: out of range, or none of the choices; else None."""
    options = spec.options
    if options and not spec.takes_word(value):
        low, high = options.get("min"), options.get("max")
        try:
            if low is not None and value < low:
                return _out_of_range("value_smaller_than_min", f"Value {value} smaller than min of {low}", spec, value)
            if high is not None and value > high:
                return _out_of_range("value_bigger_than_max", f"Value {value} bigger than max of {high}", spec, value)
        except TypeError:
            return bad_value(spec, value, TypeError(f"{type(value).__name__} cannot be compared with a number"))
    return None if spec.accepts(value) else _not_in_list(spec, value)


def _not_in_list(spec: InputSpec, value: object) -> Problem:
    choices = spec.choices or ()
    is_long = len(choices) > LONGEST_LIST_SHOWN
    shown = f"(list of length {len(choices)})" if is_long else str(list(choices))
    extra = {"input_name": spec.name, "input_config": None if is_long else spec.as_json()}
    extra["received_value"] = _received(value)
    details = f"{spec.name}: '{_cut(value)}' not in {shown}"
    return Problem("value_not_in_list", "Value not in list", details, extra, _none_of_the_choices(spec, value))


def _none_of_the_choices(spec: InputSpec, value: object) -> Explanation:
    known = spec.choices or ()
    wrong = next((item for item in value if item not in known), value) if isinstance(value, list) else value
    return _explained(spec, f"Value {_quoted(wrong)} not in list", value, kind="value_not_in_list")


def missing(spec: InputSpec) -> Problem:
    message = "Required input is missing"
    explanation = Explanation(f"{message}: {spec.name}", field=spec.name, allowed=spec.allowed())
    return Problem("required_input_missing", message, spec.name, {"input_name": spec.name}, explanation)


def none_given(names: Sequence[str]) -> Problem:
    """Return the problem of a node that needs one of these inputs and has none."""
    message = "Required input is missing"
    details = f"{', '.join(names)}: got none of them, expected one"
    explanation = Explanation(f"{message}: {details}", field=names[0], allowed=list(names))
    return Problem("required_input_missing", message, details, {"input_name": names[0]}, explanation)


def not_listed() -> Problem:
    """Return the problem of an output node that cannot run, for a prompt with too many problems to list."""
    message = "The output cannot run: a node that it needs has a problem that is not listed"
    details = "mend the listed problems first and send the prompt again"
    return Problem("problem_not_listed", message, details, {}, Explanation(f"{message}; {details}"))


def unknown_input(class_type: str, name: str, link: list[object], rules: NodeRules) -> Problem:
    names = [spec.name for spec in rules.declared]
    details = f"{name}: {class_type} has no such input; expected one of: {', '.join(names) or 'none'}"
    explanation = Explanation(f"Unknown linked input: {name}", field=name, allowed=names)
    extra = {"input_name": name, "linked_node": link}
    return Problem("unknown_input", "Unknown linked input", details, extra, explanation)


def bad_value(spec: InputSpec, value: object, error: Exception) -> Problem:
    declared = spec.type if isinstance(spec.type, str) else list(spec.type)
    message = f"Failed to convert an input value to a {declared} value"
    extra = _about(spec, received_value=_received(value), exception_message=_cut(error))
    wanted = NUMBERS.get(str(declared), f"of the type {declared}")
    explanation = _explained(spec, f"Value {_quoted(value)} is not {wanted}", value)
    return Problem("invalid_input_type", message, f"{spec.name}, {_cut(value)}, {_cut(error)}", extra, explanation)


def bad_link(spec: InputSpec, link: list[object]) -> Problem:
    message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
    extra = _about(spec, received_value=_received(link))
    return Problem("bad_linked_input", message, spec.name, extra, _explained(spec, message, link))


def type_mismatch(spec: InputSpec, given: str | Sequence[object], link: list[object]) -> Problem:
    wanted = spec.type if isinstance(spec.type, str) else list(spec.type)
    received = given if isinstance(given, str) else list(given)
    details = f"{spec.name}, received_type({received}) mismatch input_type({wanted})"
    message = "Return type mismatch between linked nodes"
    words = f"Node {link[0]!r} gives {_type_shown(given)}, wanted {_type_shown(spec.type)}"
    extra = _about(spec, received_type=received, linked_node=link)
    return Problem("return_type_mismatch", message, details, extra, _explained(spec, words, link))


def dead_link(spec: InputSpec, link: list[object], error: Exception, via: Via, *, is_node_there: bool) -> Problem:
    """Return the problem of a link that leads nowhere. ComfyUI reports it as an exception in the node with the link."""
    words = (
        f"Node {link[0]!r} has no output {link[1]!r}" if is_node_there else f"Linked node {link[0]!r} does not exist"
    )
    explanation = _explained(spec, words, link, kind="bad_linked_input")
    return _raised((type(error).__name__, str(error)), via, explanation)


def cycle(around: str, spec: InputSpec, link: list[object]) -> Problem:
    message = f"Dependency cycle detected: {around}"
    failure = ("graph.DependencyCycleError", message)
    return _raised(failure, (spec, link), Explanation(message, "dependency_cycle"))


def check_raised(error: BaseException, via: Via) -> Problem:
    """Return the problem of a node whose own check of its inputs raised an exception."""
    kind = _type_name(error)
    words = f"The node's own check of its inputs failed: {kind}: {_cut(error)}"
    return _raised((kind, str(error)), via, Explanation(words, "exception_during_validation"))


def complaint(spec: InputSpec | None, name: str, value: object, verdict: object) -> Problem:
    """Return the problem that a node's own check found in an input.

    A file that is none of the input folder's is explained like any other wrong choice.
    """
    details = name if verdict is False else f"{name} - {_cut(verdict)}"
    message = "Custom validation failed for node"
    if spec is not None and _is_absent_file(spec, value):
        explanation = _none_of_the_choices(spec, value)
    else:
        received = None if value is None or spec is None else {"received": _received(value)}
        allowed = None if spec is None else spec.allowed()
        explanation = Explanation(f"{message}: {details}", field=name, allowed=allowed, extra=received)
    return Problem("custom_validation_failed", message, details, {"input_name": name}, explanation)


def _is_absent_file(spec: InputSpec, value: object) -> bool:
    choices = spec.choices
    return spec.is_open and choices is not None and value not in choices and not names_another_folder(value)


def _out_of_range(kind: str, message: str, spec: InputSpec, value: object) -> Problem:
    return Problem(kind, message, spec.name, _about(spec, received_value=value), _explained(spec, message, value))


def _raised(failure: tuple[str, str], via: Via, explanation: Explanation) -> Problem:
    """Return the problem of an uncheckable node: `failure` is a type and a text, `via` the link to the node."""
    kind, text = failure
    if via is None:
        extra: dict[str, Any] = {"exception_type": kind, "traceback": []}
        return Problem("exception_during_validation", "Exception when validating node", text, extra, explanation)
    spec, link = via
    extra = _about(spec, exception_message=text, exception_type=kind, traceback=[], linked_node=link)
    message = "Exception when validating inner node"
    return Problem("exception_during_inner_validation", message, text, extra, explanation)


def _explained(spec: InputSpec, words: str, value: object, *, kind: str | None = None) -> Explanation:
    extra = {"received": _received(value)}
    return Explanation(f"{words}: {spec.name}", kind, spec.name, allowed=spec.allowed(), extra=extra)


def _about(spec: InputSpec, **more: object) -> dict[str, object]:
    return {"input_name": spec.name, "input_config": spec.as_json(), **more}


def _type_shown(declared: str | Sequence[object]) -> str:
    return declared if isinstance(declared, str) else "COMBO"


def _cut(value: object) -> str:
    """Return a value as text, cut where it is long."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}... ({len(text)} characters)"


def _quoted(value: object) -> str:
    return repr(_cut(value)) if isinstance(value, str) else _cut(repr(value))


def _received(value: Any) -> Any:
    """Return a value as a problem repeats it: unchanged unless it is long."""
    if not isinstance(value, str | list | dict):
        return value
    return value if len(str(value)) <= MAX_SHOWN_LENGTH else _cut(value)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__.removeprefix("darkroom.")
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
