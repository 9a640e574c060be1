"""The order of nodes: the one that runs next.

A node waits for its links' sources, unless their results are known. Among the ready ones the choice is ComfyUI's, since
clients see it: first an output or async node, then one that feeds an output, then one that feeds such a node, then any;
within one rank the one that was added first. A node with a `lateness` runs after all that have less of it. Ranks are
kept up to date as links are added and the ready nodes lie in a heap, so the cost of a node grows neither with the graph
nor with the number of ready nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass

from darkroom.contract.errors import RunError
from darkroom.contract.graph.prompt import Node, is_link
from darkroom.contract.graph.spec import NodeRules

FIRST, FEEDS_OUTPUT, FEEDS_FEEDER, ANY = range(4)


class NodeInputError(RunError):
    """A node asks for a lazy input that it does not have or that is no link."""

    code = "node_input_error"


@dataclass(slots=True)
class _Entry:
    """A node that has not finished. `waits_for` counts what keeps it from running, outside events included."""

    id: str
    index: int
    rank: int
    lateness: int
    is_output: bool
    feeds_output: bool = False
    waits_for: int = 0
    is_held: bool = False  # taken by `next`, and neither finished nor put back yet


class Schedule:
    def __init__(
        self,
        node: Callable[[str], Node],
        find_rules: Callable[[Node], NodeRules],
        is_known: Callable[[str], bool],
        lateness: Callable[[Node], int] = lambda node: 0,
    ) -> None:
        self._node = node
        self._lateness = lateness
        self._find_rules = find_rules
        self._is_known = is_known
        self._pending: dict[str, _Entry] = {}
        self._feeds: dict[str, dict[str, None]] = {}
        self._fed_by: dict[str, list[str]] = {}
        self._ready: list[tuple[int, int, int, str]] = []
        self._added = 0
        self._outside = 0

    @property
    def is_empty(self) -> bool:
        return not self._pending

    @property
    def has_one_left(self) -> bool:
        return len(self._pending) == 1

    @property
    def pending(self) -> list[str]:
        """The nodes that have not finished, in the order in which they were added."""
        return list(self._pending)

    @property
    def waits_for_outside(self) -> bool:
        """True where some node waits for an event outside of the schedule (`hold`)."""
        return self._outside > 0

    def add(self, root: str) -> None:
        """Add a node and all it needs that is not known yet; lazy inputs only when asked for (`need`)."""
        stack = [root]
        links: list[tuple[str, str]] = []
        while stack:
            node_id = stack.pop()
            if node_id in self._pending:
                continue
            node = self._node(node_id)
            rules = self._find_rules(node)
            rank = FIRST if rules.is_output or rules.is_async else ANY
            self._pending[node_id] = _Entry(node_id, self._added, rank, self._lateness(node), rules.is_output)
            self._feeds[node_id] = {}
            self._fed_by[node_id] = []
            self._added += 1
            for link in node.links:
                if link.input_name in rules.lazy or self._is_known(link.source):
                    continue
                stack.append(link.source)
                links.append((link.source, node_id))
            if not node.links or not links or links[-1][1] != node_id:
                self._offer(self._pending[node_id])
        for source, target in links:
            self._connect(source, target)

    def wait_for(self, source: str, target: str) -> None:
        """Let `target` wait for `source`, which is added when it is not there yet. Nothing when it is known."""
        if not self._is_known(source):
            self.add(source)
            self._connect(source, target)

    def need(self, node_id: str, input_name: str) -> None:
        """Let a node wait for one of its lazy inputs. Raises NodeInputError when that is no link."""
        inputs = self._node(node_id).inputs
        if input_name not in inputs:
            raise NodeInputError(
                f"Node {node_id} says it needs input {input_name}, but there is no input to that node at all"
            )
        value = inputs[input_name]
        if not is_link(value):
            raise NodeInputError(f"Node {node_id} says it needs input {input_name}, but that value is a constant")
        self.wait_for(value[0], node_id)

    def next(self) -> str | None:
        """Take the node that should run now; None when none is ready. `finish` it or `put_back`."""
        while self._ready:
            _, rank, _, node_id = heapq.heappop(self._ready)
            entry = self._pending.get(node_id)
            if entry is not None and entry.waits_for == 0 and entry.rank == rank and not entry.is_held:
                entry.is_held = True
                return node_id
        return None

    def put_back(self, node_id: str) -> None:
        """Return a node that cannot finish yet: it runs again when what it waits for is done."""
        entry = self._pending[node_id]
        entry.is_held = False
        self._offer(entry)

    def finish(self, node_id: str) -> None:
        entry = self._pending.pop(node_id)
        entry.is_held = False
        for target in self._feeds.pop(node_id):
            self._release(self._pending[target])
        del self._fed_by[node_id]

    def hold(self, node_id: str) -> Callable[[], None]:
        """Keep a node back until the returned function is called."""
        self._outside += 1
        self._pending[node_id].waits_for += 1

        def let_go() -> None:
            self._outside -= 1
            entry = self._pending.get(node_id)
            if entry is not None:
                self._release(entry)

        return let_go

    def cycle(self) -> list[str]:
        """Return the nodes that wait for each other, and those that wait for them, in the order of their addition."""
        waits = dict.fromkeys(self._pending, 0)
        for targets in self._feeds.values():
            for target in targets:
                waits[target] += 1
        free = [node_id for node_id, count in waits.items() if count == 0]
        while free:
            node_id = free.pop()
            del waits[node_id]
            for target in self._feeds[node_id]:
                waits[target] -= 1
                if waits[target] == 0:
                    free.append(target)
        return list(waits)

    def check_integrity(self, known: Collection[str] = ()) -> None:
        """Raise AssertionError unless counts, links and the pending nodes agree; `known` must not be pending."""
        waits = dict.fromkeys(self._pending, 0)
        for source, targets in self._feeds.items():
            assert source in self._pending, f"{source} feeds others but is not pending"
            for target in targets:
                waits[target] += 1
        held_back = sum(entry.waits_for - waits[node_id] for node_id, entry in self._pending.items())
        assert held_back == self._outside, "nodes wait for more than their sources and outside events"
        assert not any(node_id in self._pending for node_id in known), "a known node is pending"

    def _connect(self, source: str, target: str) -> None:
        feeds = self._feeds[source]
        if target in feeds:
            return
        feeds[target] = None
        self._fed_by[target].append(source)
        entry = self._pending[target]
        entry.waits_for += 1
        above = self._pending[source]
        if entry.is_output:
            if not above.feeds_output:
                above.feeds_output = True
                self._raise_rank(above, FEEDS_OUTPUT)
                for feeder in self._fed_by[source]:
                    self._raise_rank(self._pending[feeder], FEEDS_FEEDER)
        elif entry.feeds_output:
            self._raise_rank(above, FEEDS_FEEDER)

    def _raise_rank(self, entry: _Entry, rank: int) -> None:
        if rank < entry.rank:
            entry.rank = rank
            self._offer(entry)

    def _release(self, entry: _Entry) -> None:
        entry.waits_for -= 1
        self._offer(entry)

    def _offer(self, entry: _Entry) -> None:
        if entry.waits_for == 0 and not entry.is_held:
            heapq.heappush(self._ready, (entry.lateness, entry.rank, entry.index, entry.id))
