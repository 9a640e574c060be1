"""Context of the running node call, for code that does not receive it as an argument.

A class in ComfyUI's form gets only its inputs, and so do functions that custom nodes put into sampling. Progress bars,
interruption and graph builders use this module instead. The call is known in its own code and in what it awaits or
copies its context into, not in threads it starts on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from engine.nodes.base import NodeContext


class RunningCall:
    """One call of a node. `num_graphs` counts the graphs it has built so far, so that their ids differ."""

    __slots__ = ("context", "num_graphs")

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.num_graphs = 0


RUNNING_CALL: ContextVar[RunningCall | None] = ContextVar("running_call", default=None)


def running_context() -> NodeContext | None:
    """Return the context of the running call, or None outside of any."""
    call = RUNNING_CALL.get()
    return None if call is None else call.context


@contextmanager
def call_of(context: NodeContext) -> Iterator[None]:
    """Make that call the running one while the context is open."""
    token = RUNNING_CALL.set(RunningCall(context))
    try:
        with context.cancel.current():
            yield
    finally:
        RUNNING_CALL.reset(token)
