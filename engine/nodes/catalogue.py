"""Which node classes there are, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from engine.graph.spec import NodeRules
from engine.nodes.base import NodeClass, NodeEnvironment


class Catalogue(Mapping[str, NodeClass]):
    """Node classes by name, in the order in which they were added."""

    def __init__(self, classes: Iterable[NodeClass] = ()) -> None:
        self._classes: dict[str, NodeClass] = {}
        for node_class in classes:
            self.add(node_class)

    def add(self, node_class: NodeClass) -> None:
        """Add a class; a later one of the same name takes its place, as in ComfyUI."""
        self._classes[node_class.class_type] = node_class

    def __getitem__(self, class_type: str) -> NodeClass:
        return self._classes[class_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def rules(self, class_type: str, environment: NodeEnvironment) -> NodeRules | None:
        """The rules of a class as of now; None when there is no such class."""
        found = self._classes.get(class_type)
        return None if found is None else found.rules(environment)
