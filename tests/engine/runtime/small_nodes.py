"""Small nodes, one for each way in which a node can run. Each call is written down in a `Calls`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated, Any

from darkroom.engine.errors import OutOfMemory
from darkroom.engine.log_context import report_warning
from darkroom.engine.nodes.base import ExecutionBlocker, Expanded, NodeClass, NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Hidden, Lazy, Optional, Out, Socket
from darkroom.engine.nodes.widgets import Int, Text

NUMBER = Annotated[Any, Socket("NUMBER")]
NUMBERS = Annotated[Any, Socket("NUMBER"), Out("NUMBERS", is_list=True)]


LEAVING: dict[str, type[BaseException]] = {
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "cancel": asyncio.CancelledError,
}


class Calls(list[str]):
    """The ids of the nodes that were called, in order."""


def small_nodes(calls: Calls) -> tuple[NodeClass, ...]:
    def called(context: NodeContext) -> None:
        calls.append(context.node_id)

    @node("Number", category="test")
    def number(context: NodeContext, *, value: Annotated[int, Int()] = 0) -> NUMBER:
        called(context)
        return value

    @node("Add", category="test")
    def add(context: NodeContext, *, a: NUMBER, b: NUMBER) -> NUMBER:
        called(context)
        return a + b

    @node("Doubt", category="test")
    def doubt(context: NodeContext, *, message: Annotated[str, Text()] = "") -> NUMBER:
        called(context)
        report_warning(logging.getLogger(__name__), "doubtful", message)
        return 1

    @node("DoubtInside", category="test")
    def doubt_inside(context: NodeContext, *, message: Annotated[str, Text()] = "") -> NUMBER:
        called(context)
        inner = f"{context.node_id}.d"
        return Expanded({inner: {"class_type": "Doubt", "inputs": {"message": message}}}, ([inner, 0],))

    @node("Range", category="test")
    def make_range(context: NodeContext, *, count: Annotated[int, Int()] = 3) -> NUMBERS:
        called(context)
        return (list(range(count)),)

    @node("Total", category="test", input_is_list=True)
    def total(context: NodeContext, *, a: NUMBER) -> NUMBER:
        called(context)
        return sum(a)

    @node("Show", category="test", is_output=True)
    def show(context: NodeContext, *, a: NUMBER) -> NodeOutput:
        called(context)
        return NodeOutput({"number": [a]})

    @node("Save", category="test", is_output=True)
    def save(context: NodeContext, *, a: NUMBER, prefix: Annotated[str, Text()] = "file") -> NodeOutput:
        called(context)
        file = context.files.save_path(prefix, suffix=".txt")
        context.files.submit(lambda: file.path.write_text(str(a)) and None)
        return NodeOutput({"texts": [file.shown()]})

    @node("Steps", category="test")
    def steps(context: NodeContext, *, count: Annotated[int, Int()] = 3) -> NUMBER:
        called(context)
        for step in range(count):
            context.report_progress(step + 1, count)
            if context.report_preview is not None:
                context.report_preview([step])
        return count

    @node("Fail", category="test")
    def fail(context: NodeContext, *, a: NUMBER) -> NUMBER:
        called(context)
        raise IndexError("no such thing")

    @node("Greedy", category="test")
    def greedy(context: NodeContext, *, a: NUMBER, times: Annotated[int, Int(), Optional()] = 1000) -> NUMBER:
        """Runs out of memory the first `times` times."""
        called(context)
        if calls.count(context.node_id) <= times:
            raise OutOfMemory("too much")
        return a

    def choose(*, pick: int, **_: Any) -> Sequence[str]:
        return ["first" if pick == 0 else "second"]

    @node("Choose", category="test", needs=choose)
    def chosen(
        context: NodeContext,
        *,
        pick: Annotated[int, Int()] = 0,
        first: Annotated[Any, Socket("NUMBER"), Lazy()],
        second: Annotated[Any, Socket("NUMBER"), Lazy()],
    ) -> NUMBER:
        called(context)
        return first if pick == 0 else second

    @node("Block", category="test")
    def block(context: NodeContext, *, message: Annotated[str, Text(), Optional()] = "") -> NUMBER:
        called(context)
        return ExecutionBlocker(message or None)

    @node("Sum", category="test")
    def expand_sum(context: NodeContext, *, values: Annotated[str, Text()] = "") -> NUMBER:
        """A chain of additions of the given numbers."""
        called(context)
        me = context.node_id
        first, *rest = [int(item) for item in values.split()]
        graph: dict[str, Any] = {f"{me}.n": {"class_type": "Number", "inputs": {"value": first}}}
        last = f"{me}.n"
        for index, value in enumerate(rest):
            graph[f"{me}.v{index}"] = {"class_type": "Number", "inputs": {"value": value}}
            inputs = {"a": [last, 0], "b": [f"{me}.v{index}", 0]}
            last = f"{me}.s{index}"
            graph[last] = {"class_type": "Add", "inputs": inputs}
        return Expanded(graph, ([last, 0],))

    @node("Countdown", category="test")
    def countdown(context: NodeContext, *, count: Annotated[int, Int()] = 0) -> NUMBER:
        """A loop: expands into itself until nothing is left."""
        called(context)
        if count == 0:
            return 0
        inner = f"{context.node_id}-"
        return Expanded({inner: {"class_type": "Countdown", "inputs": {"count": count - 1}}}, ([inner, 0],))

    @node("Tangle", category="test")
    def tangle(context: NodeContext) -> NUMBER:
        """Expands into two nodes that wait for each other."""
        me = context.node_id
        graph = {
            f"{me}.a": {"class_type": "Add", "inputs": {"a": [f"{me}.b", 0], "b": 1}},
            f"{me}.b": {"class_type": "Add", "inputs": {"a": [f"{me}.a", 0], "b": 1}},
        }
        return Expanded(graph, ([f"{me}.a", 0],))

    @node("Wait", category="test")
    async def wait(context: NodeContext, *, milliseconds: Annotated[int, Int()] = 10) -> NUMBER:
        calls.append(f"{context.node_id} starts")
        await asyncio.sleep(milliseconds / 1000)
        calls.append(f"{context.node_id} ends")
        return milliseconds

    @node("AsyncFail", category="test")
    async def async_fail(context: NodeContext) -> NUMBER:
        await asyncio.sleep(0.001)
        raise ValueError("later")

    @node("Leave", category="test")
    def leave(context: NodeContext, *, how: Annotated[str, Text()]) -> NUMBER:
        """Raises what is for processes and tasks to end with."""
        raise LEAVING[how](2)

    @node("AsyncLeave", category="test")
    async def async_leave(
        context: NodeContext, *, how: Annotated[str, Text()], milliseconds: Annotated[int, Int()]
    ) -> NUMBER:
        if milliseconds:
            await asyncio.sleep(milliseconds / 1000)
        raise LEAVING[how](2)

    @node("ShowOdd", category="test", is_output=True)
    def show_odd(context: NodeContext) -> NodeOutput:
        return NodeOutput({"odd": [b"no text", {1, 2}]})

    @node("AsyncGreedy", category="test")
    async def async_greedy(context: NodeContext, *, times: Annotated[int, Int()] = 1000) -> NUMBER:
        """Runs out of memory the first `times` times, after it has waited."""
        called(context)
        await asyncio.sleep(0.001)
        if calls.count(context.node_id) <= times:
            raise OutOfMemory("too much later")
        return 7

    @node("Who", category="test", is_output=True, fingerprint=lambda environment: "as it was")
    def who(
        context: NodeContext,
        *,
        me: Annotated[Any, Hidden("UNIQUE_ID")],
        prompt: Annotated[Any, Hidden("PROMPT")],
        extra: Annotated[Any, Hidden("EXTRA_PNGINFO")],
        dynamic: Annotated[Any, Hidden("DYNPROMPT")],
    ) -> NodeOutput:
        return NodeOutput({"who": [me, prompt[me]["is_changed"], extra, dynamic.get_node(me)["class_type"]]})

    return (
        number, add, doubt, doubt_inside, make_range, total, show, save, steps, fail, greedy, chosen, block, expand_sum,
        countdown, tangle, wait, async_fail, leave, async_leave, show_odd, async_greedy, who,
    )  # fmt: skip
