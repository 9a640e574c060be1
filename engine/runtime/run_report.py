"""Reports of one run: its events, and its result."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from darkroom.contract.errors import EngineError
from darkroom.contract.graph.node_ref import NodeRef
from darkroom.engine.errors import NodeFailed, OutOfMemory
from darkroom.engine.events import Event, MemoryRelieved, NodeFinished, NodeWarned, RunFailed, RunInterrupted
from darkroom.engine.log_context import NodeWarning, logged_as
from darkroom.engine.runtime.cache.store import KeptWarning
from darkroom.engine.runtime.request import RunRequest, RunResult
from darkroom.engine.runtime.run_graph import RunGraph
from darkroom.engine.runtime.run_services import ReliefTaken

log = logging.getLogger(__name__)

OUT_OF_MEMORY_TIP = (
    "This error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked before you might have "
    "accidentally set the batch_size to a large number."
)


class DependencyCycleError(EngineError):
    """Nodes wait for each other; expansion made it so, since validation finds the cycles of a prompt."""

    code = "dependency_cycle"


class RunReport:
    """Reports of one run so far: nodes executed, what they show, and their warnings."""

    def __init__(self, request: RunRequest, graph: RunGraph, on_event: Callable[[Event], None]) -> None:
        self.emit = self._emit = on_event
        self.executed: list[str] = []
        self.shown: dict[str, Mapping[str, Any]] = {}
        self.warned: dict[str, list[NodeWarning]] = {}  # by the node that runs
        self._request = request
        self._prompt_id = request.prompt_id
        self._graph = graph
        self._prompt = graph.prompt
        self._reported: set[tuple[str, NodeWarning]] = set()

    def finished(self, ref: NodeRef) -> None:
        """Report that a node has been executed."""
        self.executed.append(ref.node_id)
        self._emit(NodeFinished(self._prompt_id, ref))

    def relieved(self, ref: NodeRef, relief: ReliefTaken) -> None:
        """Report a step that was taken to make room for a node."""
        self._emit(MemoryRelieved(self._prompt_id, ref, relief.step, relief.freed_bytes, relief.changes_arithmetic))

    def warnings_of(self, node_id: str) -> None:
        """Report the warnings of a known node that were not reported in this run."""
        result = self._graph.known(node_id)
        for kept in result.warnings if result is not None else ():
            key = kept.class_type, kept.warning
            if key not in self._reported:
                self._reported.add(key)
                warned_id, warning = self._node_of(kept, node_id), kept.warning
                self._emit(NodeWarned(self._prompt_id, warned_id, kept.class_type, warning.type, warning.message))

    def _node_of(self, kept: KeptWarning, node_id: str) -> str:
        """Return the node of this prompt that a warning is of, which an earlier prompt may have had under another id.

        It is `node_id`, whose result has the warning, where no better one is known.
        """
        is_there = self._prompt.has_node(kept.node_id)
        is_own = self._prompt.node(node_id).class_type == kept.class_type
        if is_there and not is_own and self._prompt.node(kept.node_id).class_type == kept.class_type:
            return kept.node_id
        return self._prompt.get_real_node_id(node_id)

    def result(self, status: Any) -> RunResult:
        """Return the result of the run, with what its nodes show."""
        outputs: dict[str, Mapping[str, Any]] = {}
        meta: dict[str, Mapping[str, Any]] = {}
        self.shown.update(self._graph.shown_before)
        for node_id in sorted(self.shown, key=self._place_of()):
            ref = self._prompt.ref(node_id)
            outputs[node_id] = self.shown[node_id]
            meta[node_id] = {
                "node_id": node_id,
                "display_node": ref.display_node_id,
                "parent_node": ref.parent_node_id,
                "real_node_id": ref.real_node_id,
            }
        return RunResult(status, outputs, meta)

    def _place_of(self) -> Callable[[str], int]:
        places = {node_id: index for index, node_id in enumerate(self._request.prompt)}
        return lambda node_id: places[self._prompt.get_real_node_id(node_id)]

    def interrupted(self, node_id: str) -> None:
        """Report that the run was interrupted in a node."""
        real_id = self._prompt.get_real_node_id(node_id)
        class_type = self._prompt.node(real_id).class_type
        self._emit(RunInterrupted(self._prompt_id, real_id, class_type, list(self.executed), now_ms()))

    def failed(self, node_id: str, error: Exception, inputs: Mapping[str, Sequence[Any]]) -> None:
        """Log the failure of a node, and report it with the inputs that it had."""
        real_id = self._prompt.get_real_node_id(node_id)
        class_type = self._prompt.node(real_id).class_type
        cause = error.__cause__ if isinstance(error, EngineError) and error.__cause__ is not None else error
        is_cycle = isinstance(error, DependencyCycleError)
        if not is_cycle:
            with logged_as(self._prompt_id, real_id, class_type):
                log.error("%s (node %s) failed", class_type, node_id, exc_info=error)
        frames = list(error.frames) if isinstance(error, OutOfMemory) else []
        frames = frames or traceback.format_tb(cause.__traceback__)
        tip = OUT_OF_MEMORY_TIP if isinstance(error, OutOfMemory) else ""
        self._emit(
            RunFailed(
                prompt_id=self._prompt_id,
                node_id=real_id,
                class_type=class_type,
                executed=list(self.executed),
                code=error.code if isinstance(error, EngineError) else NodeFailed.code,
                exception_type="graph.DependencyCycleError" if is_cycle else _type_name(cause),
                exception_message=str(error) if is_cycle else f"{error}\n{tip}",
                traceback=[] if is_cycle else frames,
                current_inputs={name: [_shown_value(item) for item in values] for name, values in inputs.items()},
                current_outputs=list(self._request.prompt),
                timestamp_ms=now_ms(),
            )
        )


def now_ms() -> int:
    """Return the time since 1970 in milliseconds."""
    return int(time.time() * 1000)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__.removeprefix("darkroom.")
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _shown_value(value: object) -> object:
    return value if value is None or isinstance(value, (int, float, bool, str)) else str(value)
