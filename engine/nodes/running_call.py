"""The node call that is going on, for code that is not handed its context.

A class in ComfyUI's form gets only its inputs, and so do functions that custom nodes put into sampling; progress bars,
interruption and graph builders then ask here. Known in the call itself and in what it awaits or copies its context
into, not in threads it starts on its own.
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
    """The context of the call that is going on; None outside of any."""
    call = RUNNING_CALL.get()
    return None if call is None else call.context


@contextmanager
def call_of(context: NodeContext) -> Iterator[None]:
    """While open, that call is the one that is going on."""
    token = RUNNING_CALL.set(RunningCall(context))
    try:
        yield
    finally:
        RUNNING_CALL.reset(token)
