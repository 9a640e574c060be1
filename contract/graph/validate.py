"""Validation of a prompt: every problem of every node at once, in ComfyUI's words.

A node is looked at once, its parents first, without recursion. As in ComfyUI only what an output node needs is checked;
values are turned into their declared type on the way; an output node can run when it and everything it needs is fine.
Nodes that a switch leaves out (`switches.py`) are not needed, so they are no reason to refuse; ComfyUI checks them.
Where ComfyUI says more than one thing about a link it stops at the first; here the node's other inputs are checked too.

The cost grows with the prompt alone, however much is wrong with it: `MAX_PROBLEMS` are listed, the rest is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from darkroom.contract.errors import Explanation, NodeProblems, Problem, PromptRejected
from darkroom.contract.graph.dynamic_inputs import expanded, nested
from darkroom.contract.graph.loops import find_loops
from darkroom.contract.graph.problems import (
    bad_link,
    bad_value,
    check_raised,
    complaint,
    cycle,
    dead_link,
    missing,
    none_given,
    not_listed,
    range_problem,
    type_mismatch,
    unknown_input,
)
from darkroom.contract.graph.prompt import Node, Prompt, is_link, parse_prompt, undeclared_class, unknown_class
from darkroom.contract.graph.size import GraphLimits, check_size
from darkroom.contract.graph.spec import InputCheck, InputSpec, NodeRules, ValueDict, Values
from darkroom.contract.graph.switches import NOTHING_LEFT_OUT, LeftOut, left_out_of, without_left_out

FindRules = Callable[[str], NodeRules | None]
Excuses = Callable[[Problem, Mapping[str, Any]], bool]
"""True for a problem, of a node with these inputs, that will be gone by the time the prompt runs."""

FindMisfits = Callable[[Prompt, Mapping[str, NodeRules]], Mapping[str, Problem]]
"""Problems that one look at a node does not show, as of models that do not fit one another, by node id."""

MAX_PROBLEMS = 100
MAX_OUTPUTS_NAMED = 100  # of those that a node's problems keep from running
MAX_CYCLE_NAMED = 50

# What no JSON value can be: a value that is no link would only fail inside the node. Types of custom nodes may differ.
LINK_ONLY = frozenset(
    {
        "MODEL", "CLIP", "VAE", "CONDITIONING", "LATENT", "IMAGE", "MASK", "CONTROL_NET", "CLIP_VISION", "STYLE_MODEL",
        "UPSCALE_MODEL", "SAMPLER", "SIGMAS", "NOISE", "GUIDER", "HOOKS", "GLIGEN",
    }
)  # fmt: skip
DEFAULT_LIMITS = GraphLimits()
_MISSING = object()
_CASTS: Mapping[str, Callable[[Any], Any]] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}


def no_misfits(_prompt: Prompt, _rules: Mapping[str, NodeRules]) -> Mapping[str, Problem]:
    """Return none: links of fitting types are enough."""
    return {}


def never(_problem: Problem, _inputs: Mapping[str, object]) -> bool:
    """Return False: no problem goes away by itself."""
    return False


@dataclass(frozen=True, slots=True)
class CheckedPrompt:
    """A prompt of which at least one output can run.

    `outputs` are the output nodes that can, `node_problems` tells about the nodes that keep others from running: every
    output node that cannot run is in it, by itself or among the dependent outputs of another node.
    `prompt` is the prompt with its values in their declared types: what runs, and what metadata and history show.
    """

    outputs: tuple[str, ...]
    node_problems: Mapping[str, NodeProblems]
    prompt: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """All there is to say about a prompt. `problems` are about the prompt as a whole; with none it can run.

    Nodes of an unknown class are among `problems`, one each; `node_problems` are then those of all other nodes.
    `num_unlisted` are the problems of nodes beyond `MAX_PROBLEMS`, which are only counted.
    """

    outputs: tuple[str, ...]
    problems: Sequence[Problem]
    node_problems: Mapping[str, NodeProblems]
    prompt: Mapping[str, Any]
    has_unknown_class: bool = False
    num_unlisted: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)  # class by id of the output nodes that cannot run


def check_prompt(
    data: object,
    find_rules: FindRules,
    targets: Collection[str] | None = None,
    limits: GraphLimits = DEFAULT_LIMITS,
    excuses: Excuses = never,
    find_misfits: FindMisfits = no_misfits,
) -> CheckedPrompt:
    """Find all problems; raise `PromptRejected` when nothing of the prompt can run. As `find_problems` otherwise."""
    findings = find_problems(data, find_rules, targets, limits, excuses, find_misfits)
    if findings.has_unknown_class:  # ComfyUI stops there
        raise PromptRejected(findings.problems[0])
    if findings.problems:
        raise PromptRejected(findings.problems[0], findings.node_problems)
    return CheckedPrompt(findings.outputs, {**findings.node_problems, **_unnamed(findings)}, findings.prompt)


def _unnamed(findings: Findings) -> dict[str, NodeProblems]:
    """Return the output nodes that cannot run and that no listed problem names, as happens past the limits."""
    named = {output for entry in findings.node_problems.values() for output in entry.dependent_outputs}
    left = [node_id for node_id in findings.failed if node_id not in named and node_id not in findings.node_problems]
    return {node_id: NodeProblems(findings.failed[node_id], [not_listed()], [node_id]) for node_id in left}


def find_problems(
    data: Any,
    find_rules: FindRules,
    targets: Collection[str] | None = None,
    limits: GraphLimits = DEFAULT_LIMITS,
    excuses: Excuses = never,
    find_misfits: FindMisfits = no_misfits,
) -> Findings:
    """Find what is wrong with a prompt. `targets` narrows the output nodes to these (`partial_execution_targets`).

    A problem that `excuses` is true for counts as none. Raises `PromptRejected` when the data is no prompt at all, or
    is over `limits`.
    """
    check_size(data, limits)
    targets = None if targets is None else frozenset(targets)
    prompt = parse_prompt(data)
    rules, reasons = _rules_of_all(prompt, find_rules)
    left_out = left_out_of(prompt, rules)
    unknown = _unknown_classes(prompt, reasons, left_out)
    if unknown.num_found:
        return _findings_beside_unknown(prompt, rules, unknown, data, targets, excuses, left_out)
    outputs = [node_id for node_id, node in prompt.items() if _is_wanted_output(node, rules, targets)]
    if not outputs:
        return Findings((), [_no_outputs()], {}, data)
    running = parse_prompt(without_left_out(data, left_out)) if left_out.links else prompt
    loops = find_loops(running, lambda item: rules[item].facts.loop, lambda item: rules[item].is_output)
    walk = _Walk(prompt, rules, excuses, misfits={**find_misfits(prompt, rules), **loops.problems}, left_out=left_out)
    for node_id in outputs:
        walk.visit(node_id)
        root = loops.root_of(node_id)
        walk.visit(root)
        walk.fine[node_id] &= walk.fine[root]
    walk.visit_set_aside()
    return walk.findings(data, outputs)


def _no_outputs() -> Problem:
    explanation = Explanation("Nothing to save: the workflow has no output node")
    return Problem("prompt_no_outputs", "Prompt has no outputs", "", {}, explanation)


@dataclass(slots=True)
class _UnknownClasses:
    """Nodes whose class cannot be used: a problem for each of the first ones, and how many there are."""

    listed: list[Problem] = field(default_factory=list)
    num_found: int = 0


def left_out_in(prompt: Prompt, find_rules: FindRules) -> LeftOut:
    """Return the links and nodes that switches leave out; classes that cannot be used choose nothing."""
    return left_out_of(prompt, _rules_of_all(prompt, find_rules)[0])


_Reasons = Mapping[str, BaseException | None]
"""Classes that cannot be used: the error of one whose own declaration raised, None for one that does not exist."""


def _rules_of_all(prompt: Prompt, find_rules: FindRules) -> tuple[dict[str, NodeRules], _Reasons]:
    """Look up the rules of every class of a prompt, once each."""
    rules: dict[str, NodeRules] = {}
    reasons: dict[str, BaseException | None] = {}
    for node in prompt.values():
        class_type = node.class_type
        if class_type in rules or class_type in reasons:
            continue
        try:
            found = find_rules(class_type)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the class's own declaration
            reasons[class_type] = error
            continue
        if found is None:
            reasons[class_type] = None
        else:
            rules[class_type] = found
    return rules, reasons


def _unknown_classes(prompt: Prompt, reasons: _Reasons, left_out: LeftOut) -> _UnknownClasses:
    """Return the nodes whose class cannot be used, without those that never run."""
    unknown = _UnknownClasses()
    if not reasons:
        return unknown
    for node in prompt.values():
        if node.class_type not in reasons or node.id in left_out.nodes:
            continue
        unknown.num_found += 1
        if len(unknown.listed) < MAX_PROBLEMS:
            reason = reasons[node.class_type]
            unknown.listed.append(unknown_class(node) if reason is None else undeclared_class(node, reason))
    return unknown


def _findings_beside_unknown(
    prompt: Prompt,
    rules: Mapping[str, NodeRules],
    unknown: _UnknownClasses,
    data: Mapping[str, object],
    targets: Collection[str] | None,
    excuses: Excuses,
    left_out: LeftOut,
) -> Findings:
    """Return the problems of all nodes of known classes; inputs and outputs of the others are unknown."""
    known = [node.id for node in prompt.values() if node.class_type in rules and node.id not in left_out.nodes]
    outputs = [node_id for node_id in known if _is_wanted_output(prompt[node_id], rules, targets)]
    walk = _Walk(prompt, rules, excuses, max_listed=MAX_PROBLEMS - len(unknown.listed), left_out=left_out)
    for node_id in (*outputs, *known):
        walk.visit(node_id)
    found = walk.findings(data, outputs)
    num_unlisted = found.num_unlisted + unknown.num_found - len(unknown.listed)
    return Findings((), unknown.listed, found.node_problems, found.prompt, True, num_unlisted)


def _is_wanted_output(node: Node, rules: Mapping[str, NodeRules], targets: Collection[str] | None) -> bool:
    own = rules.get(node.class_type)
    return own is not None and own.is_output and (targets is None or node.id in targets)


class _Frame:
    """A node being looked at: its parents are visited before it is judged.

    `problems` are those that are listed; `is_faultless` is False with any, listed, only counted or excused.
    """

    __slots__ = ("ahead", "is_faultless", "is_fine", "node", "problems")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.problems: list[Problem] = []
        self.ahead: list[tuple[InputSpec, list[Any]]] = []
        self.is_fine = True
        self.is_faultless = True


class _Walk:
    """One pass over what the outputs need. `fine` has every node that was judged, parents before children.

    It is large because each kind of problem is found in the same pass.
    """

    def __init__(
        self,
        prompt: Prompt,
        rules: Mapping[str, NodeRules],
        excuses: Excuses,
        max_listed: int = MAX_PROBLEMS,
        misfits: Mapping[str, Problem] | None = None,
        left_out: LeftOut = NOTHING_LEFT_OUT,
    ) -> None:
        self.prompt = prompt
        self.rules = rules
        self.fine: dict[str, bool] = {}
        self.problems: dict[str, list[Problem]] = {}
        self.cast: dict[str, dict[str, Any]] = {}
        self._excuses = excuses
        self._misfits = misfits or {}
        self._unused, self._chosen = left_out.links, left_out.chosen
        self._max_listed = max_listed
        self._num_problems = 0
        self._open: dict[str, int] = {}  # the nodes being looked at, each with its place in the stack
        self._set_aside: list[str] = []

    def visit(self, root: str) -> None:
        """Judge a node and all it needs."""
        if root in self.fine:
            return
        stack = [self._enter(root, None, 0)]
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
                stack.append(self._enter(source, (spec, link), len(stack)))

    def visit_set_aside(self) -> None:
        """Judge what only links of a wrong type lead to, so that its problems are told as well."""
        while self._set_aside:
            self.visit(self._set_aside.pop())

    def _enter(self, node_id: str, via: tuple[InputSpec, list[object]] | None, place: int) -> _Frame:
        frame = _Frame(self.prompt[node_id])
        self._open[node_id] = place
        self._check_inputs(frame, via)
        if node_id in self._misfits:
            self._report(frame, self._misfits[node_id])
        frame.ahead.reverse()
        return frame

    def _leave(self, frame: _Frame, child: _Frame | None) -> None:
        node_id = frame.node.id
        del self._open[node_id]
        is_fine = frame.is_fine
        self.fine[node_id] = is_fine
        if frame.problems:
            self.problems[node_id] = frame.problems
        if child is not None:
            child.is_fine &= is_fine

    def _close_cycle(self, stack: list[_Frame], spec: InputSpec, link: list[Any]) -> None:
        stack[-1].is_fine = False
        start = self._open[link[0]]
        if self._is_full:
            self._count(stack[start])
            return
        ids = [frame.node.id for frame in stack[start : start + MAX_CYCLE_NAMED]]
        more = ["..."] if len(stack) - start > MAX_CYCLE_NAMED else []
        around = " -> ".join([*ids, *more, ids[0]])
        self._report(stack[start], cycle(around, spec, link))

    @property
    def _is_full(self) -> bool:
        return self._num_problems >= self._max_listed

    def _report(self, frame: _Frame, problem: Problem) -> None:
        """List a problem of a node, or only count it when enough are listed."""
        if self._excuses(problem, frame.node.inputs):
            frame.is_faultless = False
            return
        if not self._is_full:
            frame.problems.append(problem)
        self._count(frame)

    def _count(self, frame: _Frame) -> None:
        self._num_problems += 1
        frame.is_fine = frame.is_faultless = False

    def _check_inputs(self, frame: _Frame, via: tuple[InputSpec, list[object]] | None) -> None:
        node = frame.node
        rules = expanded(self.rules[node.class_type], node.inputs)
        inputs = node.inputs
        check = rules.check
        replaces = check if check is not None and not check.comes_last else None
        linked_types: dict[str, Any] = {}
        for spec in rules.declared:
            value = inputs.get(spec.name, _MISSING)
            if value is _MISSING:
                if spec.section == "required" and not self._may_be_absent(node, rules, spec.name):
                    self._report(frame, missing(spec))
            elif isinstance(value, list):
                if (node.id, spec.name) not in self._unused:
                    self._check_link(frame, spec, value, linked_types, via)
            else:
                self._check_value(frame, spec, value, is_checked=replaces is not None and replaces.takes(spec.name))
        self._check_undeclared_links(frame, rules, via)
        needed = rules.facts.needs_one_of
        if needed and inputs.keys().isdisjoint(needed):
            self._report(frame, none_given(needed))
        if check is not None and (frame.is_faultless or not check.comes_last):
            self._ask_node(frame, rules, linked_types, via)

    def _may_be_absent(self, node: Node, rules: NodeRules, name: str) -> bool:
        """Return True for a side of a switch that is not certain to be followed: later releases let it be left out."""
        facts = rules.facts
        if name not in facts.alternatives.values():
            return False
        chosen = self._chosen.get(node.id)
        return is_link(node.inputs.get(facts.chosen_by)) if chosen is None else name != chosen

    def _check_link(
        self,
        frame: _Frame,
        spec: InputSpec,
        link: list[Any],
        linked_types: dict[str, Any],
        via: tuple[InputSpec, list[Any]] | None,
    ) -> None:
        if len(link) != 2:
            self._report(frame, bad_link(spec, link))
            return
        source, slot = link
        if self._is_of_unknown_class(source):
            frame.is_fine = False
            return
        try:
            given = self.rules[self.prompt[source].class_type].output_types[slot]
        except (KeyError, IndexError, TypeError) as error:  # no such node, no such output, no index
            is_there = isinstance(source, str) and source in self.prompt
            self._report(frame, dead_link(spec, link, error, via, is_node_there=is_there))
            return
        linked_types[spec.name] = given
        check = self.rules[frame.node.class_type].check
        takes_any = check is not None and "input_types" in check.names
        if takes_any or is_compatible(given, spec.type):
            frame.ahead.append((spec, link))
        else:
            self._report(frame, type_mismatch(spec, given, link))
            self._set_aside.append(source)

    def _check_undeclared_links(
        self, frame: _Frame, rules: NodeRules, via: tuple[InputSpec, list[object]] | None
    ) -> None:
        """Check links under names that the class does not declare: they are run and handed to the node like any other.

        Values under such names are passed over, as in ComfyUI.
        """
        for link in frame.node.links:
            if link.input_name in rules.declared_names:
                continue
            value = [link.source, link.slot]
            if rules.takes_link(link.input_name):
                self._check_link(frame, InputSpec(link.input_name, "*", {}, "optional"), value, {}, via)
            else:
                self._report(frame, unknown_input(frame.node.class_type, link.input_name, value, rules))

    def _is_of_unknown_class(self, node_id: object) -> bool:
        node = self.prompt.get(node_id) if isinstance(node_id, str) else None
        return node is not None and node.class_type not in self.rules

    def _check_value(self, frame: _Frame, spec: InputSpec, value: Any, *, is_checked: bool) -> None:
        try:
            cast = cast_value(spec, value)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(value, Mapping) and "__value__" in value:
                value = value["__value__"]
            self._report(frame, bad_value(spec, value, error))
            return
        if type(spec.type) is str and spec.type in LINK_ONLY:
            self._report(frame, bad_link(spec, value))
            return
        if cast is not value:
            self.cast.setdefault(frame.node.id, {})[spec.name] = cast
        if not is_checked:
            problem = range_problem(spec, cast)
            if problem is not None:
                self._report(frame, problem)

    def _ask_node(
        self,
        frame: _Frame,
        rules: NodeRules,
        linked_types: Mapping[str, object],
        via: tuple[InputSpec, list[object]] | None,
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
            verdict = check.function(**_as_received(rules, check, asked))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the node's own check
            self._report(frame, check_raised(error, via))
            return
        if verdict is not True and not _is_blocker(verdict):
            for name, words in _complaints(check, asked, verdict).items():
                self._report(frame, complaint(rules.inputs.get(name), name, asked[name], words))

    def findings(self, data: Mapping[str, object], outputs: Sequence[str]) -> Findings:
        good = tuple(node_id for node_id in outputs if self.fine[node_id])
        node_problems = self._node_problems([node_id for node_id in outputs if not self.fine[node_id]])
        num_unlisted = max(0, self._num_problems - self._max_listed)
        problems: list[Problem] = []
        if not good:
            told = [problem for node_id in outputs for problem in self.problems.get(node_id, ())]
            lines = [f"{problem.message}: {problem.details}" for problem in told]
            lines += [f"... and {num_unlisted} more problems"] if num_unlisted else []
            extra = {"unlisted_problems": num_unlisted} if num_unlisted else {}
            message = "Prompt outputs failed validation"
            problems.append(Problem("prompt_outputs_failed_validation", message, "\n".join(lines), extra))
        failed = {node_id: self.prompt[node_id].class_type for node_id in outputs if not self.fine[node_id]}
        return Findings(good, problems, node_problems, self._cast_prompt(data), False, num_unlisted, failed)

    def _node_problems(self, failed: Sequence[str]) -> dict[str, NodeProblems]:
        """Return the nodes with listed problems, each with the first outputs that need it.

        Sets of nodes with problems are bits of one integer, so that one pass over the prompt is enough.
        """
        if not self.problems:
            return {}
        bits = {node_id: 1 << index for index, node_id in enumerate(self.problems)}
        needs = dict.fromkeys(self.fine, 0)
        for node_id in self.fine:  # parents before children
            needed = bits.get(node_id, 0)
            for link in self.prompt[node_id].links:
                if (node_id, link.input_name) in self._unused:
                    continue
                needed |= needs.get(link.source, 0) or bits.get(link.source, 0)  # the latter: it closes a cycle
            needs[node_id] = needed
        dependent: list[list[str]] = [[] for _ in bits]
        unfilled = (1 << len(bits)) - 1
        for output in failed:
            found = needs[output] & unfilled
            while found:
                lowest = found & -found
                index = lowest.bit_length() - 1
                dependent[index].append(output)
                if len(dependent[index]) == MAX_OUTPUTS_NAMED:
                    unfilled ^= lowest
                found ^= lowest
        return {
            node_id: NodeProblems(self.prompt[node_id].class_type, problems, outputs)
            for (node_id, problems), outputs in zip(self.problems.items(), dependent, strict=True)
        }

    def _cast_prompt(self, data: Values) -> Values:
        """Return the prompt with converted values; the caller's own object is left as it is."""
        if not self.cast:
            return data
        prompt = dict(data)
        for node_id, values in self.cast.items():
            prompt[node_id] = {**data[node_id], "inputs": {**data[node_id]["inputs"], **values}}
        return prompt


def cast_value(spec: InputSpec, value: Any) -> Any:
    """Convert a value to the type its input declares, out of `{"__value__": ...}` (a list that is no link).

    Raises TypeError, ValueError or OverflowError when it cannot be turned into that type.
    """
    if isinstance(value, Mapping) and "__value__" in value:
        value = value["__value__"]
    declared = spec.type
    if type(declared) is not str:
        return _cast_by_equality(declared, value) if isinstance(declared, str) else value
    cast = _CASTS.get(declared)
    return value if cast is None or type(value) is cast or spec.takes_word(value) else cast(value)


def _cast_by_equality(declared: str, value: Any) -> Any:
    """Convert a value of a type name that may define `==` itself, as one that stands for two types does."""
    for name, cast in _CASTS.items():
        if declared == name and type(value) is not cast:
            value = cast(value)
    return value


def is_compatible(given: str | Sequence[object], wanted: str | Sequence[object]) -> bool:
    """Return True where an output of one type may feed an input of another: the same, `*`, or one common of `A,B`."""
    if not (given != wanted) or given == "*" or wanted == "*":  # noqa: SIM202 - some types redefine `!=` to mean any
        return True
    if not isinstance(given, str) or not isinstance(wanted, str):
        return not isinstance(given, str) and not isinstance(wanted, str) and list(given) == list(wanted)
    return not {item.strip() for item in given.split(",")}.isdisjoint(item.strip() for item in wanted.split(","))


def _complaints(check: InputCheck, asked: Collection[str], verdict: object) -> Mapping[str, object]:
    """Return the words of a check by the inputs that it complains of."""
    if not check.comes_last:
        return dict.fromkeys(asked, verdict)
    name, _, words = str(verdict).partition(": ")
    return {name: words} if name in asked else dict.fromkeys(list(asked)[:1], verdict)


def _as_received(rules: NodeRules, check: InputCheck, asked: ValueDict) -> ValueDict:
    """Return the inputs of a node's check in the shape that the node's call has."""
    given = {name: [value] for name, value in asked.items()} if check.takes_lists else asked
    if not rules.places:
        return given
    return {name: value for name, value in nested(rules, given).items() if check.takes(name) or name in given}


def _is_blocker(verdict: object) -> bool:
    return type(verdict).__name__ == "ExecutionBlocker"
