"""Protocol of a cache strategy, and the results that it keeps.

Results lie in groups: one for the client's own nodes (group None), one for the nodes that each node expanded into
(its id). A group lives and dies with the node it belongs to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from darkroom.contract.graph.signature import Key
from darkroom.engine.log_context import NodeWarning


@dataclass(frozen=True, slots=True)
class KeptWarning:
    """A warning of a node, and the node that it is of in the prompt that ran it."""

    node_id: str
    class_type: str
    warning: NodeWarning


class NodeResult:
    """Result of a node. `outputs` has a list of values for each output, `ui` is for clients.

    `warnings` are the node's own and those of the nodes before it, since their results may be forgotten first.
    """

    __slots__ = ("outputs", "ui", "warnings")

    def __init__(
        self, outputs: list[list[object]], ui: Mapping[str, object] | None, warnings: Sequence[KeptWarning] = ()
    ) -> None:
        self.outputs = outputs
        self.ui = ui
        self.warnings = warnings


class ResultCache(ABC):
    """Results of earlier runs. Used on the GPU thread only.

    A run tells a cache that `forgets_within_run` which results it has no more use for (`consumed`).
    """

    forgets_within_run: ClassVar[bool] = False

    @abstractmethod
    def begin(self, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        """Begin a run with the keys and class names of its prompt's nodes; drop what need not be kept any longer."""

    @abstractmethod
    def expand(self, owner: str, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        """Add the nodes that a node has expanded into."""

    @abstractmethod
    def get(self, group: str | None, key: Key) -> NodeResult | None: ...

    @abstractmethod
    def put(self, group: str | None, key: Key, result: NodeResult) -> None: ...

    @abstractmethod
    def drop(self, group: str | None, key: Key) -> None:
        """Forget a result, if it is there."""

    def consumed(self, group: str | None, key: Key) -> None:  # noqa: B027 - most strategies need not know
        """Record that everything in the running prompt that takes this result has run."""

    @abstractmethod
    def forget_results(self) -> None:
        """Forget all results, also in the middle of a run; what is known of the graph stays."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, between runs."""

    @abstractmethod
    def __len__(self) -> int: ...
