"""Progress of the run of a prompt, by node and by step. Pure; not stored.

A node counts as one unit of work, and a node that samples additionally as its number of steps. The percentage never
decreases, neither when a node is shorter than expected nor when the job is run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from darkroom.contract.graph.cost import MAX_STEPS
from darkroom.contract.graph.work import PromptWork
from darkroom.worker.json.values import JsonObject, object_at


@dataclass(slots=True)
class Progress:
    """The progress of a run. `percent` is of the whole run, 0 to 100; `value` of `maximum` is of the running node.

    `steps` are those of the prompt's nodes that sample, as they were read when the job was made; None: not yet read.
    """

    steps: Mapping[str, float] | None = None
    percent: float = 0.0
    node_id: str | None = None
    node_class: str | None = None
    value: float = 0
    maximum: float = 0
    _work: dict[str, float] = field(default_factory=dict, init=False)
    _open: set[str] = field(default_factory=set, init=False)
    _classes: dict[str, str] = field(default_factory=dict, init=False)
    _total: float = field(default=0, init=False)
    _done: float = field(default=0, init=False)

    @property
    def num_nodes(self) -> int:
        return len(self._work)

    @property
    def num_done(self) -> int:
        return len(self._work) - len(self._open)

    def begin(self, prompt: JsonObject) -> None:
        """Begin the run of a prompt. No effect if it has already begun."""
        if self._work:
            return
        self._work = units_of(prompt, steps_of(PromptWork(prompt)) if self.steps is None else self.steps)
        self._classes = {node_id: str(object_at(node).get("class_type", "")) for node_id, node in prompt.items()}
        self._open = set(self._work)
        self._total = sum(self._work.values()) or 1.0
        self._done = 0.0

    def begin_again(self) -> None:
        """Restart the run; the percentage reached so far is kept."""
        self._work, self._open, self._done = {}, set(), 0.0
        self._leave_node()

    def skip(self, node_ids: Iterable[object]) -> None:
        """Mark cached nodes, which are not executed again, as done."""
        for node_id in node_ids:
            self._close(str(node_id))
        self._raise(0.0)

    def enter(self, node_id: str) -> None:
        """Begin a node and mark the one before it as done."""
        if self.node_id is not None and self.node_id != node_id:
            self._close(self.node_id)
        self.node_id, self.node_class = node_id, self._classes.get(node_id)
        self.value = self.maximum = 0
        self._raise(0.0)

    def step(self, node_id: str, value: float, maximum: float) -> None:
        """Set the progress of a node to `value` of `maximum` (more than 0)."""
        if node_id != self.node_id:
            self.enter(node_id)
        self.value, self.maximum = value, maximum
        share = min(1.0, max(0.0, value / maximum))
        self._raise(share * self._work.get(node_id, 0.0) if node_id in self._open else 0.0)

    def finish(self) -> None:
        """Mark the run as successfully completed."""
        self.percent = 100.0
        self._work, self._open, self._classes = {}, set(), {}
        self._leave_node()

    def as_json(self) -> dict[str, object]:
        return {
            "percent": round(self.percent, 2),
            "node_id": self.node_id,
            "node_class": self.node_class,
            "value": self.value,
            "max": self.maximum,
        }

    def _leave_node(self) -> None:
        self.node_id = self.node_class = None
        self.value = self.maximum = 0

    def _close(self, node_id: str) -> None:
        if node_id in self._open:
            self._open.discard(node_id)
            self._done += self._work[node_id]

    def _raise(self, in_node: float) -> None:
        self.percent = max(self.percent, min(100.0, 100.0 * (self._done + in_node) / (self._total or 1.0)))


def steps_of(work: PromptWork) -> dict[str, float]:
    """Return the steps of the nodes of a prompt that sample, by node id; 0 where they are unknown."""
    return {item.node_id: item.steps or 0.0 for item in work.samplings}


def units_of(prompt: JsonObject, steps: Mapping[str, float]) -> dict[str, float]:
    """Return the units of work by node id: one, and another for each step of a node that samples."""
    return {node_id: 1.0 + min(max(steps.get(node_id, 0.0), 0.0), MAX_STEPS) for node_id in prompt}
