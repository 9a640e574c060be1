"""Whether a prompt can run: every problem of every node at once, in ComfyUI's words.

A node is looked at once, its parents first, without recursion. As in ComfyUI only what an output node needs is checked;
values are turned into their declared type on the way; an output node can run when it and everything it needs is fine.
Where ComfyUI says more than one thing about a link it stops at the first; here the node's other inputs are checked too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import NodeProblems, Problem, PromptRejected
from engine.graph.prompt import Node, Prompt, is_link, parse_prompt, undeclared_class, unknown_class
from engine.graph.spec import InputSpec, NodeRules

FindRules = Callable[[str], NodeRules | None]

LONGEST_LIST_SHOWN = 20  # longer lists of choices are not sent back
# What no JSON value can be: a value that is no link would only fail inside the node. Types of custom nodes may differ.
LINK_ONLY = frozenset(
    {
        "MODEL", "CLIP", "VAE", "CONDITIONING", "LATENT", "IMAGE", "MASK", "CONTROL_NET", "CLIP_VISION", "STYLE_MODEL",
        "UPSCALE_MODEL", "SAMPLER", "SIGMAS", "NOISE", "GUIDER", "HOOKS", "GLIGEN",
    }
)  # fmt: skip
_MISSING = object()
_CASTS: Mapping[str, Callable[[Any], Any]] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}


@dataclass(frozen=True, slots=True)
class CheckedPrompt:
    """A prompt of which at least one output can run.

    `outputs` are the output nodes that can, `node_problems` tells about the nodes that keep others from running.
    `prompt` is the prompt with its values in their declared types: what runs, and what metadata and history show.
    """

    outputs: tuple[str, ...]
    node_problems: Mapping[str, NodeProblems]
    prompt: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """All there is to say about a prompt. `problems` are about the prompt as a whole; with none it can run.

    Nodes of an unknown class are among `problems`, one each; `node_problems` are then those of all other nodes.
    """

    outputs: tuple[str, ...]
    problems: Sequence[Problem]
    node_problems: Mapping[str, NodeProblems]
    prompt: Mapping[str, Any]
    has_unknown_class: bool = False


def check_prompt(data: Any, find_rules: FindRules, targets: Collection[str] | None = None) -> CheckedPrompt:
    """`find_problems`, raising `PromptRejected` when nothing of the prompt can run."""
    findings = find_problems(data, find_rules, targets)
    if findings.has_unknown_class:  # ComfyUI stops there
        raise PromptRejected(findings.problems[0])
    if findings.problems:
        raise PromptRejected(findings.problems[0], findings.node_problems)
    return CheckedPrompt(findings.outputs, findings.node_problems, findings.prompt)


def find_problems(data: Any, find_rules: FindRules, targets: Collection[str] | None = None) -> Findings:
    """Every problem of a prompt. `targets` narrows the output nodes to these (`partial_execution_targets`).

    Raises `PromptRejected` when the data is no prompt at all.
    """
    prompt = parse_prompt(data)
    rules: dict[str, NodeRules] = {}
    unknown: list[Problem] = []
    for node in prompt.values():
        if node.class_type in rules:
            continue
        try:
            found = find_rules(node.class_type)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the class's own declaration
            unknown.append(undeclared_class(node, error))
            continue
        if found is None:
            unknown.append(unknown_class(node))
        else:
            rules[node.class_type] = found
    if unknown:
        return _findings_beside_unknown(prompt, rules, unknown, data, targets)
    outputs = [
        node_id for node_id, node in prompt.items() if _is_wanted_output(node_id, rules[node.class_type], targets)
    ]
    if not outputs:
        return Findings((), [Problem("prompt_no_outputs", "Prompt has no outputs", "", {})], {}, data)
    walk = _Walk(prompt, rules)
    for node_id in outputs:
        walk.visit(node_id)
    walk.visit_set_aside()
    return walk.findings(data, outputs)


def _findings_beside_unknown(
    prompt: Prompt,
    rules: Mapping[str, NodeRules],
    unknown: Sequence[Problem],
    data: Mapping[str, Any],
    targets: Collection[str] | None,
) -> Findings:
    """The problems of all nodes whose class there is; what an unknown node needs or gives is not known."""
    known = [node_id for node_id, node in prompt.items() if node.class_type in rules]
    outputs = [node_id for node_id in known if _is_wanted_output(node_id, rules[prompt[node_id].class_type], targets)]
    walk = _Walk(prompt, rules)
    for node_id in (*outputs, *known):
        walk.visit(node_id)
    found = walk.findings(data, outputs)
    return Findings((), unknown, found.node_problems, found.prompt, has_unknown_class=True)


def _is_wanted_output(node_id: str, rules: NodeRules, targets: Collection[str] | None) -> bool:
    return rules.is_output and (targets is None or node_id in targets)


class _Frame:
    """A node being looked at: its parents are visited before it is judged."""

    __slots__ = ("ahead", "is_fine", "node", "problems")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.problems: list[Problem] = []
        self.ahead: list[tuple[InputSpec, list[Any]]] = []
        self.is_fine = True


class _Walk:
    """One pass over what the outputs need. `fine` has every node that was judged, parents before children."""

    def __init__(self, prompt: Prompt, rules: Mapping[str, NodeRules]) -> None:
        self.prompt = prompt
        self.rules = rules
        self.fine: dict[str, bool] = {}
        self.problems: dict[str, list[Problem]] = {}
        self.cast: dict[str, dict[str, Any]] = {}
        self._open: set[str] = set()
        self._set_aside: list[str] = []

    def visit(self, root: str) -> None:
        """Judge a node and all it needs."""
        if root in self.fine:
            return
        stack = [self._enter(root, None)]
        while stack:
            frame = stack[-1]
            if not frame.ahead:
                self._leave(stack.pop(), stack[-1] if stack else None)
                continue
            spec, link = frame.ahead.pop()
            source = link[0]
            known = self.fine.get(source)
            if known is not None:
                frame.is_fine &= known
            elif source in self._open:
                self._close_cycle(stack, spec, link)
            else:
                stack.append(self._enter(source, (spec, link)))

    def visit_set_aside(self) -> None:
        """Judge what only links of a wrong type lead to, so that its problems are told as well."""
        while self._set_aside:
            self.visit(self._set_aside.pop())

    def _enter(self, node_id: str, via: tuple[InputSpec, list[Any]] | None) -> _Frame:
        frame = _Frame(self.prompt[node_id])
        self._open.add(node_id)
        self._check_inputs(frame, via)
        frame.ahead.reverse()
        return frame

    def _leave(self, frame: _Frame, child: _Frame | None) -> None:
        node_id = frame.node.id
        self._open.discard(node_id)
        is_fine = frame.is_fine and not frame.problems
        self.fine[node_id] = is_fine
        if frame.problems:
            self.problems[node_id] = frame.problems
        if child is not None:
            child.is_fine &= is_fine

    def _close_cycle(self, stack: list[_Frame], spec: InputSpec, link: list[Any]) -> None:
        ids = [frame.node.id for frame in stack]
        start = ids.index(link[0])
        around = " -> ".join([*ids[start:], ids[start]])
        failure = ("graph.DependencyCycleError", f"Dependency cycle detected: {around}")
        stack[start].problems.append(_raised(failure, (spec, link)))
        stack[-1].is_fine = False

    def _check_inputs(self, frame: _Frame, via: tuple[InputSpec, list[Any]] | None) -> None:
        node = frame.node
        rules = self.rules[node.class_type]
        inputs = node.inputs
        check = rules.check
        replaces = check if check is not None and not check.comes_last else None
        linked_types: dict[str, Any] = {}
        for spec in rules.declared:
            value = inputs.get(spec.name, _MISSING)
            if value is _MISSING:
                if spec.section == "required":
                    frame.problems.append(_missing(spec))
            elif isinstance(value, list):
                self._check_link(frame, spec, value, linked_types, via)
            else:
                self._check_value(frame, spec, value, is_checked=replaces is not None and replaces.takes(spec.name))
        if check is not None and not (check.comes_last and frame.problems):
            self._ask_node(frame, rules, linked_types, via)

    def _check_link(
        self,
        frame: _Frame,
        spec: InputSpec,
        link: list[Any],
        linked_types: dict[str, Any],
        via: tuple[InputSpec, list[Any]] | None,
    ) -> None:
        if len(link) != 2:
            frame.problems.append(_bad_link(spec, link))
            return
        source, slot = link
        if self._is_of_unknown_class(source):
            frame.is_fine = False
            return
        try:
            given = self.rules[self.prompt[source].class_type].output_types[slot]
        except (KeyError, IndexError, TypeError) as error:  # no such node, no such output, no index
            frame.problems.append(_raised((type(error).__name__, str(error)), via))
            return
        linked_types[spec.name] = given
        check = self.rules[frame.node.class_type].check
        takes_any = check is not None and "input_types" in check.names
        if takes_any or is_compatible(given, spec.type):
            frame.ahead.append((spec, link))
        else:
            frame.problems.append(_type_mismatch(spec, given, link))
            self._set_aside.append(source)

    def _is_of_unknown_class(self, node_id: Any) -> bool:
        node = self.prompt.get(node_id) if isinstance(node_id, str) else None
        return node is not None and node.class_type not in self.rules

    def _check_value(self, frame: _Frame, spec: InputSpec, value: Any, *, is_checked: bool) -> None:
        try:
            cast = cast_value(spec, value)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(value, Mapping) and "__value__" in value:
                value = value["__value__"]
            frame.problems.append(_bad_value(spec, value, error))
            return
        if type(spec.type) is str and spec.type in LINK_ONLY:
            frame.problems.append(_bad_link(spec, value))
            return
        if cast is not value:
            self.cast.setdefault(frame.node.id, {})[spec.name] = cast
        if not is_checked:
            problem = _range_problem(spec, cast)
            if problem is not None:
                frame.problems.append(problem)

    def _ask_node(
        self,
        frame: _Frame,
        rules: NodeRules,
        linked_types: Mapping[str, Any],
        via: tuple[InputSpec, list[Any]] | None,
    ) -> None:
        check = rules.check
        assert check is not None
        known = {**frame.node.inputs, **self.cast.get(frame.node.id, {})}
        asked: dict[str, Any] = {}
        for name, value in known.items():
            spec = rules.inputs.get(name)
            if not check.takes(name):
                continue
            if is_link(value) and not (spec is not None and spec.takes_raw_link):
                asked[name] = None
            elif spec is not None:
                asked[name] = value
        if "input_types" in check.names:
            asked["input_types"] = linked_types
        try:
            verdict = check.function(**asked)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the node's own check
            frame.problems.append(_raised((_type_name(error), str(error)), via))
            return
        if verdict is not True and not _is_blocker(verdict):
            told_of = list(asked)[:1] if check.comes_last else asked
            frame.problems.extend(_complaint(name, verdict) for name in told_of)

    def findings(self, data: Mapping[str, Any], outputs: Sequence[str]) -> Findings:
        good = tuple(node_id for node_id in outputs if self.fine[node_id])
        node_problems = self._node_problems([node_id for node_id in outputs if not self.fine[node_id]])
        problems: list[Problem] = []
        if not good:
            told = [problem for node_id in outputs for problem in self.problems.get(node_id, ())]
            details = "\n".join(f"{problem.message}: {problem.details}" for problem in told)
            message = "Prompt outputs failed validation"
            problems.append(Problem("prompt_outputs_failed_validation", message, details, {}))
        return Findings(good, problems, node_problems, self._cast_prompt(data))

    def _node_problems(self, failed: Sequence[str]) -> dict[str, NodeProblems]:
        """The nodes with problems, each with the outputs that need it. Sets of outputs are bits of one integer."""
        if not self.problems:
            return {}
        needed_by = dict.fromkeys(self.fine, 0)
        for index, node_id in enumerate(failed):
            needed_by[node_id] |= 1 << index
        for node_id in reversed(self.fine):  # children before parents
            for link in self.prompt[node_id].links:
                if link.source in needed_by:
                    needed_by[link.source] |= needed_by[node_id]
        return {
            node_id: NodeProblems(
                self.prompt[node_id].class_type,
                problems,
                [output for index, output in enumerate(failed) if needed_by[node_id] >> index & 1],
            )
            for node_id, problems in self.problems.items()
        }

    def _cast_prompt(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The prompt with converted values; the caller's own object is left as it is."""
        if not self.cast:
            return data
        prompt = dict(data)
        for node_id, values in self.cast.items():
            prompt[node_id] = {**data[node_id], "inputs": {**data[node_id]["inputs"], **values}}
        return prompt


def cast_value(spec: InputSpec, value: Any) -> Any:
    """A value in the type its input declares, taken out of `{"__value__": ...}` (a list that is no link).

    Raises TypeError, ValueError or OverflowError when it cannot be turned into that type.
    """
    if isinstance(value, Mapping) and "__value__" in value:
        value = value["__value__"]
    declared = spec.type
    if type(declared) is not str:
        return value
    cast = _CASTS.get(declared)
    return value if cast is None or type(value) is cast else cast(value)


def is_compatible(given: str | Sequence[Any], wanted: str | Sequence[Any]) -> bool:
    """Whether an output of one type may feed an input of another: the same, any (`*`), or one of `A,B` in common."""
    if not (given != wanted) or given == "*" or wanted == "*":  # noqa: SIM202 - some types redefine `!=` to mean any
        return True
    if not isinstance(given, str) or not isinstance(wanted, str):
        return not isinstance(given, str) and not isinstance(wanted, str) and list(given) == list(wanted)
    return not {item.strip() for item in given.split(",")}.isdisjoint(item.strip() for item in wanted.split(","))


def _range_problem(spec: InputSpec, value: Any) -> Problem | None:
    options = spec.options
    if options:
        low, high = options.get("min"), options.get("max")
        try:
            if low is not None and value < low:
                return _out_of_range("value_smaller_than_min", f"Value {value} smaller than min of {low}", spec, value)
            if high is not None and value > high:
                return _out_of_range("value_bigger_than_max", f"Value {value} bigger than max of {high}", spec, value)
        except TypeError:
            return _bad_value(spec, value, TypeError(f"{type(value).__name__} cannot be compared with a number"))
    choices = spec.choices
    if choices is None or spec.is_open or value in choices:
        return None
    is_long = len(choices) > LONGEST_LIST_SHOWN
    shown = f"(list of length {len(choices)})" if is_long else str(list(choices))
    extra = {"input_name": spec.name, "input_config": None if is_long else spec.as_json(), "received_value": value}
    return Problem("value_not_in_list", "Value not in list", f"{spec.name}: '{value}' not in {shown}", extra)


def _missing(spec: InputSpec) -> Problem:
    return Problem("required_input_missing", "Required input is missing", spec.name, {"input_name": spec.name})


def _out_of_range(kind: str, message: str, spec: InputSpec, value: Any) -> Problem:
    return Problem(kind, message, spec.name, _about(spec, received_value=value))


def _bad_value(spec: InputSpec, value: Any, error: Exception) -> Problem:
    declared = spec.type if isinstance(spec.type, str) else list(spec.type)
    message = f"Failed to convert an input value to a {declared} value"
    extra = _about(spec, received_value=value, exception_message=str(error))
    return Problem("invalid_input_type", message, f"{spec.name}, {value}, {error}", extra)


def _bad_link(spec: InputSpec, link: list[Any]) -> Problem:
    message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
    return Problem("bad_linked_input", message, spec.name, _about(spec, received_value=link))


def _type_mismatch(spec: InputSpec, given: str | Sequence[Any], link: list[Any]) -> Problem:
    wanted = spec.type if isinstance(spec.type, str) else list(spec.type)
    received = given if isinstance(given, str) else list(given)
    details = f"{spec.name}, received_type({received}) mismatch input_type({wanted})"
    message = "Return type mismatch between linked nodes"
    return Problem("return_type_mismatch", message, details, _about(spec, received_type=received, linked_node=link))


def _complaint(name: str, verdict: Any) -> Problem:
    details = name if verdict is False else f"{name} - {verdict}"
    return Problem("custom_validation_failed", "Custom validation failed for node", details, {"input_name": name})


def _raised(failure: tuple[str, str], via: tuple[InputSpec, list[Any]] | None) -> Problem:
    """A node that cannot be looked at: `failure` is a type and a text, `via` the link that led to the node."""
    kind, text = failure
    if via is None:
        extra: dict[str, Any] = {"exception_type": kind, "traceback": []}
        return Problem("exception_during_validation", "Exception when validating node", text, extra)
    spec, link = via
    extra = _about(spec, exception_message=text, exception_type=kind, traceback=[], linked_node=link)
    return Problem("exception_during_inner_validation", "Exception when validating inner node", text, extra)


def _about(spec: InputSpec, **more: Any) -> dict[str, Any]:
    return {"input_name": spec.name, "input_config": spec.as_json(), **more}


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_blocker(verdict: Any) -> bool:
    return type(verdict).__name__ == "ExecutionBlocker"
