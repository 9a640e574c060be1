"""Loops of a prompt: which end closes which start, and the nodes between them, the body. Pure.

A node class says by its facts that it starts or ends loops (`NodeFacts.loop`). The body of a loop is what its start
feeds and its end needs. Loops may follow one another and lie within one another, but not cross:

- an end closes the innermost start before it that no other end has closed;
- what a body makes leaves it only through the end;
- whether the end collects all iterations is known before the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from darkroom.contract.errors import Explanation, Problem
from darkroom.contract.graph.prompt import Node, Prompt, is_link

Boundary = Literal["", "start", "end"]

MAX_ITERATIONS: Final = 1000
"""Most iterations of one loop."""

MAX_LOOPS: Final = 100
"""Most loops of a prompt: each is looked for through all of its nodes."""

MODE: Final = "mode"
COLLECTS: Final = "accumulate"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop by the ids of its start, its end and its body, which has loops within it whole, in the prompt's order."""

    start: str
    end: str
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundLoops:
    """Loops of a prompt by their ends, and what is wrong with others, by the node to name."""

    by_end: Mapping[str, Loop]
    problems: Mapping[str, Problem]

    def roots_of(self, outputs: Iterable[str]) -> list[str]:
        """Return the nodes to run for these outputs: for one within a loop the end of the outermost loop."""
        return list(dict.fromkeys(map(self.root_of, outputs)))

    def root_of(self, node_id: str) -> str:
        for loop in self._outermost():
            if node_id in loop.body or node_id == loop.start:
                return loop.end
        return node_id

    def times(self, node_id: str, count: Callable[[str], float]) -> float:
        """Return how often a node runs; `count` returns the iterations of a loop by its start."""
        product = 1.0
        for loop in self.by_end.values():
            if node_id in loop.body:
                product *= count(loop.start)
        return product

    def _outermost(self) -> Iterator[Loop]:
        loops = self.by_end.values()
        return (loop for loop in loops if not any(loop.end in other.body for other in loops))


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
        return number(inputs.get(f"{MODE}.num_iterations"))
    if mode != "For":
        return None
    names = ("start_iteration_index", "max_iteration", "step")
    first, after_last, step = (number(inputs.get(f"{MODE}.{name}")) for name in names)
    if first is None or after_last is None or not step:
        return None
    return float(max(0, -(-(after_last - first) // step)))


class _Search:
    """One search for the loops of a prompt, from the innermost end outwards."""

    def __init__(
        self, prompt: Prompt, starts: Collection[str], ends: Collection[str], is_output: Callable[[str], bool]
    ) -> None:
        self._prompt = prompt
        self._starts, self._ends = set(starts), set(ends)
        self._is_output = is_output
        self._takers: dict[str, list[str]] = {node_id: [] for node_id in prompt}
        for node in prompt.values():
            for link in node.links:
                if link.source in self._takers:
                    self._takers[link.source].append(node.id)
        self._below = {start: self._reached(self._takers[start], self._takers_of) for start in starts}
        self._loops: dict[str, Loop] = {}
        self._problems: dict[str, Problem] = {}

    def run(self) -> FoundLoops:
        above = {end: self._reached(self._sources_of(end), self._sources_of) for end in self._ends}
        open_starts, open_ends = set(self._starts), set(self._ends)
        # An end above another one is within its loop, or before it: either way it is closed first.
        for end in sorted(self._ends, key=lambda item: (len(above[item] & self._ends), self._place(item))):
            start = self._closest(end, above[end] & open_starts)
            if start is None:
                continue
            body = (self._below[start] & above[end]) - {end}
            self._loops[end] = Loop(start, end, tuple(node_id for node_id in self._prompt if node_id in body))
            open_starts.discard(start)
            open_ends.discard(end)
            self._check(self._loops[end], open_ends)
        for start in open_starts - self._problems.keys():
            self._problems[start] = _problem("loop_start_without_end", f"Loop {start} has no End Loop that closes it")
        return FoundLoops(self._loops, self._problems)

    def _closest(self, end: str, candidates: set[str]) -> str | None:
        """Return the start that an end closes: the one below all others. Without one the end has a problem."""
        closest = [start for start in candidates if all(start in self._below[other] for other in candidates - {start})]
        if len(closest) == 1:
            return closest[0]
        if not candidates:
            problem = _problem("loop_end_without_start", f"End Loop {end} closes no Start Loop")
        else:
            named = ", ".join(sorted(candidates))
            problem = _problem("ambiguous_loop_nesting", f"End Loop {end} could close several Start Loops: {named}")
        self._problems[end] = problem
        return None

    def _check(self, loop: Loop, open_ends: Collection[str]) -> None:
        """Note a loop that is too long, one that something leaves, and one whose end waits for its body to collect."""
        start = self._prompt[loop.start]
        iterations = iterations_of(start.inputs, _literal)
        if iterations is not None and iterations > MAX_ITERATIONS:
            found = f"Loop {loop.start} has {iterations:.0f} iterations; expected at most {MAX_ITERATIONS}"
            self._problems[loop.start] = _problem("loop_too_long", found)
        escapes = sorted(
            node_id
            for node_id in self._reached(self._takers[loop.start], self._takers_of, {loop.end})
            if node_id in open_ends or (not self._takers[node_id] and self._is_output(self._prompt[node_id].class_type))
        )
        if escapes:
            found = f"Loop {loop.start} reaches {', '.join(escapes[:10])} without passing through End Loop {loop.end}"
            self._problems[loop.start] = _problem("loop_escape", found)
        collects = self._prompt[loop.end].inputs.get(COLLECTS)
        if is_link(collects) and collects[0] in {*loop.body, loop.start}:
            found = f"{COLLECTS} of End Loop {loop.end} depends on node {collects[0]} within its loop"
            self._problems[loop.end] = _problem("loop_accumulate_from_body", found)

    def _sources_of(self, node_id: str) -> list[str]:
        return [link.source for link in self._prompt[node_id].links if link.source in self._prompt]

    def _takers_of(self, node_id: str) -> list[str]:
        return self._takers[node_id]

    def _place(self, node_id: str) -> int:
        return next(index for index, item in enumerate(self._prompt) if item == node_id)

    @staticmethod
    def _reached(
        roots: Iterable[str], following: Callable[[str], Iterable[str]], stops: Collection[str] = ()
    ) -> set[str]:
        """Return the nodes that are reached from some, these included; `stops` are passed neither over nor returned."""
        found: set[str] = set()
        pending = [node_id for node_id in roots if node_id not in stops]
        while pending:
            node_id = pending.pop()
            if node_id not in found:
                found.add(node_id)
                pending.extend(item for item in following(node_id) if item not in stops)
        return found


def _literal(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _problem(kind: str, found: str) -> Problem:
    """Return the problem of a loop in the form of a class's own check, as ComfyUI reports it."""
    extra = {"input_name": "loop boundary", "loop_error_type": kind}
    return Problem("custom_validation_failed", found, found, extra, Explanation(found, kind))


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
