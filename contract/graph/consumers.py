"""Results that a run has no more use for: the takers of a node's result, counted down as nodes finish.

Counted over everything the outputs may need, lazy inputs included, since whether those are wanted shows only later. A
node that is never run keeps what it would have taken until the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from darkroom.contract.graph.prompt import Node


class Consumers:
    def __init__(self) -> None:
        self._left: dict[str, int] = {}  # node id: how many inputs of unfinished nodes take its result
        self._takes: dict[str, list[str]] = {}  # unfinished node: whose results it takes

    def add_needed(
        self, roots: Iterable[str], find: Callable[[str], Node | None], is_known: Callable[[str], bool]
    ) -> None:
        """Count what these nodes and all they may need take; what is known needs nothing."""
        stack = list(roots)
        while stack:
            node_id = stack.pop()
            node = find(node_id)
            if node is None or node_id in self._takes or is_known(node_id):
                continue
            self.add(node)
            stack.extend(self._takes[node_id])

    def add(self, node: Node) -> None:
        self._takes[node.id] = []
        for link in node.links:
            self.hold(link.source, node.id)

    def hold(self, source: str, consumer: str) -> None:
        """Let a node take one more result."""
        self._takes.setdefault(consumer, []).append(source)
        self._left[source] = self._left.get(source, 0) + 1

    def finish(self, node_id: str) -> list[str]:
        """Record that a node is done; return the nodes whose results no later node takes, itself perhaps among them."""
        free: list[str] = []
        for source in self._takes.pop(node_id, ()):
            self._left[source] -= 1
            if not self._left[source]:
                del self._left[source]
                free.append(source)
        if node_id not in self._left:
            free.append(node_id)
        return free

    def check_integrity(self) -> None:
        """Raise AssertionError unless the counts are those of the unfinished nodes."""
        counted: dict[str, int] = {}
        for sources in self._takes.values():
            for source in sources:
                counted[source] = counted.get(source, 0) + 1
        assert counted == self._left, "a result's consumers are miscounted"
