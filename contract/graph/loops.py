"""Loops of a prompt: which end closes which start, and the nodes between them, the body. Pure.

A node class says by its facts that it starts or ends loops (`NodeFacts.loop`). The body of a loop is what its start
feeds and its end needs. Loops may follow one another and lie within one another, but not cross:

- an end closes the innermost start before it that no other end has closed;
- what a body makes leaves it only through the end;
- whether the end collects all iterations is known before the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple

from darkroom.contract.errors import Explanation, Problem
from darkroom.contract.graph.prompt import Node, Prompt, is_link
from darkroom.contract.graph.spec import Values

Boundary = Literal["", "start", "end"]

MAX_ITERATIONS: Final = 1000
"""Most iterations of one loop."""

MAX_LOOPS: Final = 100
"""Most loops of a prompt: each has a list of the nodes in it."""

MODE: Final = "mode"
NUM_ITERATIONS: Final = f"{MODE}.num_iterations"
RANGE: Final = tuple(f"{MODE}.{name}" for name in ("start_iteration_index", "max_iteration", "step"))
COLLECTS: Final = "accumulate"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop by the ids of its start, its end and its body, which has loops within it whole, in the prompt's order."""

    start: str
    end: str
    body: tuple[str, ...]


@dataclass(frozen=True)
class FoundLoops:
    """Loops of a prompt by their ends, the innermost first, and what is wrong with others, by the node to name.

    `within` has the loops whose body a node is in, by its id: bit i stands for the i-th loop of `by_end`.
    """

    by_end: Mapping[str, Loop]
    problems: Mapping[str, Problem]
    within: Mapping[str, int] = field(default_factory=dict)

    def roots_of(self, outputs: Iterable[str]) -> list[str]:
        """Return the nodes to run for these outputs: for one within a loop the end of the outermost loop."""
        return list(dict.fromkeys(map(self.root_of, outputs)))

    def root_of(self, node_id: str) -> str:
        """Return the end of the outermost loop that a node is in or starts; the node itself outside of all."""
        return self._outermost_ends.get(node_id, node_id)

    def times(self, node_id: str, count: Callable[[str], float]) -> float:
        """Return how often a node runs; `count` returns the iterations of a loop by its start."""
        product, within = 1.0, self.within.get(node_id, 0)
        for number, loop in enumerate(self.by_end.values() if within else ()):
            if within >> number & 1:
                product *= count(loop.start)
        return product

    @cached_property
    def _outermost_ends(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for loop in self.by_end.values():
            if not self.within.get(loop.end):
                for node_id in (loop.start, *loop.body):
                    found.setdefault(node_id, loop.end)
        return found


NO_LOOPS: Final = FoundLoops({}, {})


def find_loops(
    prompt: Prompt, boundary: Callable[[str], Boundary], is_output: Callable[[str], bool] = lambda _: False
) -> FoundLoops:
    """Find the loops of a prompt. `boundary` and `is_output` are asked about names of classes."""
    kinds = {node_id: boundary(node.class_type) for node_id, node in prompt.items()}
    starts = [node_id for node_id, kind in kinds.items() if kind == "start"]
    ends = [node_id for node_id, kind in kinds.items() if kind == "end"]
    if not starts and not ends:
        return NO_LOOPS
    if max(len(starts), len(ends)) > MAX_LOOPS:
        many = _problem("too_many_loops", f"Too many loops: got {max(len(starts), len(ends))}, expected {MAX_LOOPS}")
        return FoundLoops({}, dict.fromkeys((*starts, *ends), many))
    return _Search(prompt, starts, ends, is_output).run()


def iterations_of(inputs: Mapping[str, object], number: Callable[[object], float | None]) -> float | None:
    """Return how often a loop runs by the inputs of its start; None where that is not known before it runs.

    `number` returns the number that an input's value is, or that its link is known to give.
    """
    mode = inputs.get(MODE)
    if mode == "simple":
        return number(inputs.get(NUM_ITERATIONS))
    if mode != "For":
        return None
    first, after_last, step = (number(inputs.get(name)) for name in RANGE)
    if first is None or after_last is None or not step:
        return None
    return float(max(0, -(-(after_last - first) // step)))


class _Search:
    """One search for the loops of a prompt, from the innermost end outwards.

    Which starts and ends come before a node, and which behind it, are bits of one number a node, passed along its links
    once. A prompt with a cycle is refused for that; of its nodes not all of them are found.
    """

    def __init__(
        self, prompt: Prompt, starts: Sequence[str], ends: Sequence[str], is_output: Callable[[str], bool]
    ) -> None:
        self._prompt = prompt
        self._starts, self._ends = starts, ends
        self._bits = {node_id: 1 << number for number, node_id in enumerate((*starts, *ends))}
        self._sources = {
            node.id: [link.source for link in node.links if link.source in prompt] for node in prompt.values()
        }
        self._takers: dict[str, list[str]] = {node_id: [] for node_id in prompt}
        for node_id, sources in self._sources.items():
            for source in sources:
                self._takers[source].append(node_id)
        self._order = _sources_first(self._sources, self._takers)
        self._before = self._gathered(self._order, self._sources)
        self._behind = self._gathered(self._order[::-1], self._takers)
        self._shown = {node.id for node in prompt.values() if not self._takers[node.id] and is_output(node.class_type)}
        self._loops: dict[str, Loop] = {}
        self._problems: dict[str, Problem] = {}

    def run(self) -> FoundLoops:
        places = {node_id: index for index, node_id in enumerate(self._prompt)}
        all_ends = sum(self._bits[end] for end in self._ends)
        open_starts = list(self._starts)
        # An end above another one is within its loop, or before it: either way it is closed first.
        for end in sorted(self._ends, key=lambda item: ((self._before[item] & all_ends).bit_count(), places[item])):
            start = self._closest(end, [item for item in open_starts if self._before[end] & self._bits[item]])
            if start is not None:
                self._loops[end] = Loop(start, end, self._body(start, end))
                open_starts.remove(start)
        self._check_all()
        for start in open_starts:
            if start not in self._problems:
                found = f"Loop {start} has no End Loop that closes it"
                self._problems[start] = _problem("loop_start_without_end", found)
        within: dict[str, int] = {}
        for number, loop in enumerate(self._loops.values()):
            for node_id in loop.body:
                within[node_id] = within.get(node_id, 0) | 1 << number
        return FoundLoops(self._loops, self._problems, within)

    def _gathered(
        self, order: Iterable[str], neighbours: Mapping[str, Iterable[str]], closed: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return the bits of the starts and ends that a node's neighbours are, or have themselves.

        `order` has a node after its neighbours. Those in `closed` pass these bits on to no one.
        """
        found = dict.fromkeys(order, 0)
        for node_id in found:
            for item in neighbours[node_id]:
                passed = found[item] | self._bits.get(item, 0)
                found[node_id] |= passed & ~closed.get(item, 0) if closed else passed
        return found

    def _body(self, start: str, end: str) -> tuple[str, ...]:
        """Return the nodes that a start feeds and an end needs, in the prompt's order."""
        fed, needed, before, behind = self._bits[start], self._bits[end], self._before, self._behind
        return tuple(item for item in self._prompt if before[item] & fed and behind[item] & needed and item != end)

    def _closest(self, end: str, candidates: Sequence[str]) -> str | None:
        """Return the start that an end closes: the one below all others. Without one the end has a problem."""
        bits = sum(self._bits[start] for start in candidates)
        closest = [start for start in candidates if not bits & ~self._bits[start] & ~self._before[start]]
        if len(closest) == 1:
            return closest[0]
        if not candidates:
            problem = _problem("loop_end_without_start", f"End Loop {end} closes no Start Loop")
        else:
            named = ", ".join(sorted(candidates))
            problem = _problem("ambiguous_loop_nesting", f"End Loop {end} could close several Start Loops: {named}")
        self._problems[end] = problem
        return None

    def _check_all(self) -> None:
        """Note a loop that is too long, one that something leaves, and one whose end waits for its body to collect."""
        closed = {end: self._bits[loop.start] for end, loop in self._loops.items()}
        reached = self._gathered(self._order, self._sources, closed)
        open_ends = set(self._ends)
        for end, loop in self._loops.items():
            open_ends.discard(end)
            self._check_length(loop)
            leaving = open_ends | self._shown
            escapes = sorted(item for item in leaving if reached[item] & self._bits[loop.start] and item != end)
            if escapes:
                found = f"Loop {loop.start} reaches {', '.join(escapes[:10])} without passing through End Loop {end}"
                self._problems[loop.start] = _problem("loop_escape", found)
            collects = self._prompt[end].inputs.get(COLLECTS)
            if is_link(collects) and collects[0] in (loop.start, *loop.body):
                found = f"{COLLECTS} of End Loop {end} depends on node {collects[0]} within its loop"
                wrong = _Wrong(COLLECTS, [True, False], collects)
                self._problems[end] = _problem("loop_accumulate_from_body", found, wrong)

    def _check_length(self, loop: Loop) -> None:
        inputs = self._prompt[loop.start].inputs
        iterations = iterations_of(inputs, literal_number)
        if iterations is not None and iterations > MAX_ITERATIONS:
            found = f"Loop {loop.start} has {iterations:.0f} iterations; expected at most {MAX_ITERATIONS}"
            wrong = _length_of(inputs)
            self._problems[loop.start] = _problem("loop_too_long", found, wrong, input_name=wrong.field)


def _length_of(inputs: Values) -> _Wrong:
    """Return the input that makes a loop too long, with the most that it may be as its other inputs are."""
    if inputs[MODE] == "simple":
        return _Wrong(NUM_ITERATIONS, {"type": "INT", "min": 0, "max": MAX_ITERATIONS}, inputs[NUM_ITERATIONS])
    first, after_last, step = (inputs[name] for name in RANGE)
    return _Wrong(RANGE[1], {"type": "INT", "max" if step > 0 else "min": first + MAX_ITERATIONS * step}, after_last)


def _sources_first(sources: Mapping[str, Collection[str]], takers: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the nodes, each after its sources; those of a cycle, and those behind it, at the end."""
    waiting = {node_id: len(before) for node_id, before in sources.items()}
    order = [node_id for node_id, num_waiting in waiting.items() if not num_waiting]
    for node_id in order:  # grows
        for taker in takers[node_id]:
            waiting[taker] -= 1
            if not waiting[taker]:
                order.append(taker)
    return [*order, *(node_id for node_id, num_waiting in waiting.items() if num_waiting)]


def literal_number(value: object) -> float | None:
    """Return the number that a value of a prompt is, None for anything else; the largest float for more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


class _Wrong(NamedTuple):
    """The input that a loop's problem is about, its allowed values and the value that it has."""

    field: str
    allowed: object
    received: object


def _problem(kind: str, found: str, wrong: _Wrong | None = None, *, input_name: str = "loop boundary") -> Problem:
    """Return the problem of a loop in the form of a class's own check, as ComfyUI reports it."""
    extra = {"input_name": input_name, "loop_error_type": kind}
    explanation = Explanation(found, kind)
    if wrong is not None:
        explanation = Explanation(found, kind, wrong.field, allowed=wrong.allowed, extra={"received": wrong.received})
    return Problem("custom_validation_failed", found, found, extra, explanation)


@dataclass(frozen=True, slots=True)
class LoopNodes:
    """A loop of a run as its start and its end receive it: their nodes, and those of the body by id.

    `collects` is None for the end, which decides it, and `inner` has the loops within by their ends. `num_nodes` is the
    number of nodes that the run has now.
    """

    start: Node
    end: Node
    body: Mapping[str, Node]
    inner: Mapping[str, Loop]
    collects: bool | None
    num_nodes: int
