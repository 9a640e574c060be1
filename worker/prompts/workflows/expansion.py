"""Expansion: bounds on what a document becomes when its sub-graphs, names and overrides are written out. Pure.

A document of some kilobytes can stand for gigabytes: a sub-graph that is used a thousand times, a text in a thousand
names, a value for ten thousand inputs. What is produced is counted before it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from darkroom.worker.errors import Problem, RequestRejected

MAX_UNFOLDED_NODES: Final = 100_000
MAX_ELEMENTS: Final = 2_000_000  # nodes, links, slots, inputs and values
MAX_BYTES: Final = 32 * 1024 * 1024  # of values beyond the first use of each, since a job is written with each of them
MAX_NEW_BYTES: Final = 32 * 1024 * 1024  # of texts that are made
LONG_LENGTH: Final = 256  # of texts whose first use is not counted; shorter ones weigh little beside their node
MAX_TYPE_TESTS: Final = 2_000_000
ELEMENT_BYTES: Final = 8
FIELD: Final = "input.workflow_json"


@dataclass(frozen=True, slots=True)
class Weight:
    """The size of a JSON value: its values, and the characters of its texts with some bytes for each value."""

    num_elements: int = 0
    num_bytes: int = 0


@dataclass
class Expansion:
    """Counts of what is produced from one document, with their limits; 0 is no limit of the operator's.

    `num_nodes` are those of the scopes, `num_elements` what scopes and prompt consist of, `num_bytes` what they repeat,
    `num_new_bytes` the texts among it that are made, and `num_type_tests` the comparisons of types at bypassed nodes.
    A method raises RequestRejected at a limit.
    """

    max_nodes: int = 0
    num_nodes: int = 0
    num_elements: int = 0
    num_bytes: int = 0
    num_new_bytes: int = 0
    num_type_tests: int = 0
    _used: dict[int, object] = field(default_factory=dict)  # values of the document that were used, by identity
    _weights: dict[int, Weight] = field(default_factory=dict)

    def add_nodes(self, num_nodes: int) -> None:
        """Count the nodes of one more scope."""
        self.num_nodes += num_nodes
        allowed = self.max_nodes or MAX_UNFOLDED_NODES
        if self.num_nodes > allowed:
            raise _over("nodes", "has too many nodes with its sub-graphs unfolded", self.num_nodes, allowed)

    def add_elements(self, num_elements: int) -> None:
        """Count elements of a scope or of the prompt."""
        self.num_elements += num_elements
        if self.num_elements > MAX_ELEMENTS:
            message = "has too many elements with its sub-graphs and overrides written out"
            raise _over("elements", message, self.num_elements, MAX_ELEMENTS)

    def add_bytes(self, num_bytes: int) -> None:
        """Count the bytes of values that are produced."""
        self.num_bytes += num_bytes
        if self.num_bytes > MAX_BYTES:
            raise _too_many_bytes(self.num_bytes, MAX_BYTES)

    def add_new_bytes(self, num_bytes: int) -> None:
        """Count the bytes of texts that are made, such as a prompt with one of its alternatives."""
        self.num_new_bytes += num_bytes
        if self.num_new_bytes > MAX_NEW_BYTES:
            raise _too_many_bytes(self.num_new_bytes, MAX_NEW_BYTES)

    def add(self, value: object, times: int = 1) -> None:
        """Count uses of a value of the document; its bytes from the second use on, as the first is in the document."""
        key = id(value)
        weight = self._weights.get(key)
        if weight is None:
            weight = self._weights[key] = weight_of(value)
        self.add_elements(weight.num_elements * times)
        copies = times if key in self._used else times - 1
        self._used[key] = value  # which keeps its identity from being another's
        self.add_bytes(weight.num_bytes * copies)

    def add_type_tests(self, num_tests: int) -> None:
        """Count comparisons of the types of slots."""
        self.num_type_tests += num_tests
        if self.num_type_tests > MAX_TYPE_TESTS:
            message = "has too many links through bypassed nodes with many inputs"
            raise _over("type_tests", message, self.num_type_tests, MAX_TYPE_TESTS)


def weight_of(value: object) -> Weight:
    """Return the size of a JSON value."""
    num_elements = num_bytes = 0
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        num_elements += 1
        num_bytes += ELEMENT_BYTES
        if isinstance(item, str):
            num_bytes += len(item)
        elif isinstance(item, dict):
            num_bytes += sum(len(str(name)) for name in item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return Weight(num_elements, num_bytes)


def _too_many_bytes(found: int, allowed: int) -> RequestRejected:
    return _over("bytes", "has too many bytes with its sub-graphs, names and overrides written out", found, allowed)


def _over(limit: str, message: str, found: int, allowed: int) -> RequestRejected:
    text = f"{message}; got {found} or more, expected at most {allowed}"
    if limit == "nodes":
        text = f"{message}; got {found}, expected at most {allowed}"
    problem = Problem(text, FIELD, type=f"max_{limit}", allowed={"maximum": allowed}, extra={"received": found})
    return RequestRejected([problem])
