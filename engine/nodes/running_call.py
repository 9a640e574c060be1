"""Context of the running node call, for code that does not receive it as an argument.

A class in ComfyUI's form gets only its inputs, and so do functions that custom nodes put into sampling. Progress bars,
interruption and graph builders use this module instead. The call is known in its own code and in what it awaits or
copies its context into, not in threads it starts on its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from darkroom.engine.diffusion.sampling_run import sampling_run
from darkroom.engine.nodes.base import NodeContext


class RunningCall:
    """One call of a node. `num_graphs` counts the graphs it has built so far, so that their ids differ."""

    __slots__ = ("context", "num_graphs")

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.num_graphs = 0


def running_call() -> RunningCall | None:
    """Return the running call, or None outside of any."""
    call = sampling_run().call
    return call if isinstance(call, RunningCall) else None


def running_context() -> NodeContext | None:
    """Return the context of the running call, or None outside of any."""
    call = running_call()
    return None if call is None else call.context


def call_of(context: NodeContext) -> AbstractContextManager[None]:
    """Return the context in which that call is the running one."""
    return replace(sampling_run(), cancel=context.cancel, call=RunningCall(context)).current()
