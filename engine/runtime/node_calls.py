"""Calls of a run's nodes: with their context, as tasks, and again once there is room for one that ran out of memory."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from darkroom.contract.graph.dynamic_inputs import nested
from darkroom.contract.graph.node_ref import NodeRef
from darkroom.contract.graph.prompt import Node
from darkroom.contract.graph.spec import NodeRules
from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import NodeFailed, OutOfMemory
from darkroom.engine.events import NodeBlocked, NodeProgress, NodeText, PreviewMade
from darkroom.engine.nodes.base import ExecutionBlocker, NodeClass, NodeContext, Returned
from darkroom.engine.runtime.mapping import blocker_in, calls_of, with_whole_results
from darkroom.engine.runtime.outputs import RunFiles
from darkroom.engine.runtime.request import RunRequest
from darkroom.engine.runtime.run_graph import RunGraph
from darkroom.engine.runtime.run_report import RunReport
from darkroom.engine.runtime.run_services import RunServices

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node with the inputs that it is called with, as often as it takes."""

    ref: NodeRef
    node: Node
    node_class: NodeClass
    rules: NodeRules
    instance: Any
    inputs: Mapping[str, Sequence[Any]]

    def __str__(self) -> str:
        return f"{self.node.class_type} (node {self.node.id})"


class NodeCalls:
    """Calls of the nodes of one run. `needed` returns the nodes whose results unfinished ones take."""

    def __init__(
        self,
        request: RunRequest,
        services: RunServices,
        cancel: CancelToken,
        report: RunReport,
        graph: RunGraph,
        files: RunFiles,
        wake: asyncio.Event,
        needed: Callable[[], set[str]],
    ) -> None:
        self.tasks: dict[str, list[Any]] = {}  # a node's calls, those still running as tasks
        self.inputs: Mapping[str, Sequence[Any]] | None = None  # of the node that runs, for an error's message
        self._request = request
        self._prompt_id = request.prompt_id
        self._services = services
        self._cancel = cancel
        self._report = report
        self._graph = graph
        self._prompt = graph.prompt
        self._files = files
        self._wake = wake
        self._needed = needed

    async def first(self, call: NodeCall) -> list[object]:
        """Call a node for the first time; with relief where it runs out of memory."""
        self._services.begin_node(call.node.id, call.node.class_type)
        outcomes, failed = await self._try_call(call)
        if failed is None:
            for relief in self._services.taken_by_node():
                self._report.relieved(call.ref, relief)
            return outcomes
        # Only here is the failed call's traceback gone, and with it what the call had made so far.
        return await self._call_with_relief(call, failed, num_tries=1)

    def of(self, ref: NodeRef, node: Node, node_class: NodeClass, rules: NodeRules) -> tuple[NodeCall, Collection[str]]:
        """Return a node's call with the inputs known now, and the names of those that are not."""
        inputs, missing = self._graph.inputs_of(node, rules)
        self.inputs = inputs
        return NodeCall(ref, node, node_class, rules, self._graph.instance(node, node_class), inputs), missing

    async def start_over(self, call: NodeCall, failed: _OutOfMemory) -> list[object]:
        """Call an async node again that ran out of memory while others ran: first alone, then with relief.

        Alone, what models are in use is its doing, by which the steps are chosen.
        """
        log.warning("%s: %s; again by itself", call, failed.message)
        self._let_results_go()
        self._services.begin_node(call.node.id, call.node.class_type)
        outcomes, again = await self._try_whole_call(call)
        return outcomes if again is None else await self._call_with_relief(call, again, num_tries=2)

    async def _call_with_relief(self, call: NodeCall, failed: _OutOfMemory, *, num_tries: int) -> list[object]:
        """Call a node again that ran out of memory: without other runs if there were some, then with relief."""
        with self._services.alone(lambda: self._cancel.is_cancelled) as had_company:
            self._cancel.check()
            if had_company:
                log.warning("%s: %s; again while no other prompt runs", call, failed.message)
                self._services.begin_node(call.node.id, call.node.class_type)
                outcomes, again = await self._try_whole_call(call)
                if again is None:
                    return outcomes
                failed, num_tries = again, num_tries + 1
            return await self._relieve(call, failed, num_tries)

    async def _relieve(self, call: NodeCall, failed: _OutOfMemory, num_tries: int) -> list[object]:
        """Call a node again after each step that makes room, each time to its end: what a step changes holds till then.

        `num_tries` are those before, the last of which `failed`. Raises `OutOfMemory` when no step helped.
        """
        steps: list[str] = []
        try:
            self._let_results_go()
            for relief in self._services.relief():
                steps.append(relief.step)
                log.warning("%s: %s; again after %r", call, failed.message, relief.step)
                self._report.relieved(call.ref, relief)
                outcomes, again = await self._try_whole_call(call)
                if again is None:
                    return outcomes
                failed = again
        finally:
            for relief in self._services.taken_by_node():
                self._report.relieved(call.ref, relief)
            self._services.relieved()
        tried = f"The node was tried {len(steps) + num_tries} times. To make room: {', '.join(dict.fromkeys(steps))}."
        sizes = {"needed_bytes": failed.needed_bytes, "free_bytes": failed.free_bytes}
        raise OutOfMemory(f"{failed.message}\n{tried}", **sizes, frames=failed.frames) from failed.cause

    async def _try_call(self, call: NodeCall) -> tuple[list[object], _OutOfMemory | None]:
        """Return the results of a node's calls, or the memory error of one, without the frames that it holds."""
        try:
            return await self._call(call), None
        except OutOfMemory as error:
            return [], _without_frames(error)

    async def _try_whole_call(self, call: NodeCall) -> tuple[list[object], _OutOfMemory | None]:
        """Call as `_try_call` does and wait for the node's tasks; meanwhile no other node begins."""
        outcomes, failed = await self._try_call(call)
        running = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Task)]
        if failed is not None or not running:
            return outcomes, failed
        self.tasks[call.node.id] = outcomes  # so that the run's end finds them
        for task in running:
            task.add_done_callback(lambda _: self._wake.set())
        while not all(task.done() for task in running):
            self._wake.clear()
            self._cancel.check()
            await self._wake.wait()
        return await self.try_finish(call.node.id)

    async def try_finish(self, node_id: str) -> tuple[list[object], _OutOfMemory | None]:
        """Return the results of a node's tasks, all of which are done, or the memory error of one."""
        calls = self.tasks.pop(node_id)
        try:
            with self._services.device_errors():
                return [await call if isinstance(call, asyncio.Task) else call for call in calls], None
        except OutOfMemory as error:
            return [], _without_frames(error)
        finally:
            calls.clear()  # the failed task has this frame in its traceback, and would be held by it

    async def _call(self, call: NodeCall) -> list[object]:
        """Call a node for each element of its inputs: what the calls gave, or their tasks."""
        outcomes: list[Any] = []
        rules = call.rules
        with self._services.device_errors():
            for index, arguments in enumerate(calls_of(call.inputs, rules.input_is_list)):
                self._cancel.check()
                blocker = blocker_in(arguments, rules.input_is_list)
                if blocker is not None:
                    outcomes.append(self._blocked(call.node, blocker))
                    continue
                given = nested(rules, with_whole_results(arguments, rules))
                outcome = call.node_class.call(call.instance, self._context(call.ref, index), given)
                if rules.is_async or inspect.isawaitable(outcome):
                    outcome = await self._begin_task(call.node.id, outcome)
                outcomes.append(outcome)
        return outcomes

    def _let_results_go(self) -> None:
        """Let go of every result that no unfinished node takes, and of the models that only such results held."""
        self._graph.forget_all_but(self._needed())

    async def _begin_task(self, node_id: str, outcome: Awaitable[object]) -> object:
        """Make a task of an awaitable, or return its value when it needs no waiting."""
        task = asyncio.ensure_future(self._awaited(node_id, outcome))
        await asyncio.sleep(0)
        return await task if task.done() else task

    async def _awaited(self, node_id: str, outcome: Awaitable[object]) -> object:
        """Await an outcome; an error that would end the event loop fails the node."""
        try:
            return await outcome
        except (SystemExit, KeyboardInterrupt) as raised:
            raise self.failure_of(node_id, raised) from raised

    def failure_of(self, node_id: str, raised: BaseException) -> NodeFailed:
        class_type = self._prompt.node(node_id).class_type
        failure = NodeFailed(node_id, class_type, f"the node raised {raised!r}, which ends a process or a task")
        failure.__cause__ = raised
        return failure

    async def wanted_inputs(self, call: NodeCall, missing: Collection[str]) -> list[str]:
        wanted: dict[str, None] = {}
        for arguments in calls_of(call.inputs, call.rules.input_is_list):
            if blocker_in(arguments, call.rules.input_is_list) is not None:
                continue
            names = call.node_class.missing_inputs(call.instance, nested(call.rules, arguments, keyed=True))
            if inspect.isawaitable(names):
                names = await names
            if isinstance(names, (list, tuple)):
                wanted.update(dict.fromkeys(name for name in names if isinstance(name, str)))
        return [name for name in wanted if name not in call.inputs or name in missing]

    def _blocked(self, node: Node, blocker: ExecutionBlocker) -> ExecutionBlocker:
        if blocker.message is None:
            return blocker
        message = f"Execution Blocked: {blocker.message}"
        self._report.emit(NodeBlocked(self._prompt_id, node.id, node.class_type, list(self._report.executed), message))
        return ExecutionBlocker(None)  # it is told once

    def read(self, node_class: NodeClass, outcome: object) -> Returned:
        if isinstance(outcome, asyncio.Task):
            outcome = outcome.result()
        return Returned(outcome) if isinstance(outcome, ExecutionBlocker) else node_class.returned(outcome)

    def _context(self, ref: NodeRef, index: int) -> NodeContext:
        wants_previews = self._request.wants_previews
        return NodeContext(
            ref.node_id,
            self._prompt_id,
            self._cancel,
            partial(self._progress, ref),
            partial(self._preview, ref) if wants_previews else None,
            self._services.models,
            self._files,
            self._services.embed_metadata,
            index,
            lambda text: self._report.emit(NodeText(self._prompt_id, ref, text)),
            partial(self._graph.is_streamed, ref.node_id),
            self._continued,
            partial(self._graph.comes_as_list, ref.node_id),
            partial(self._graph.loop_of, ref.node_id),
        )

    def _continued(self, changed: Collection[str]) -> None:
        """Prepare for a prompt that goes on with this run: it gets its instances, not what its counters change."""
        self._graph.forget_after_run(changed)
        self._services.hold_place(self._prompt_id)

    def _progress(self, ref: NodeRef, value: float, maximum: float) -> None:
        self._report.emit(NodeProgress(self._prompt_id, ref, value, maximum))
        self._cancel.check()

    def _preview(self, ref: NodeRef, preview: object, latent_format: object = None) -> None:
        made = self._services.make_preview(preview, latent_format)
        if made is not None:
            self._report.emit(PreviewMade(self._prompt_id, ref, *made))

    async def stop(self) -> None:
        """Cancel the tasks that still run, and wait for them."""
        running = [call for calls in self.tasks.values() for call in calls if isinstance(call, asyncio.Task)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _OutOfMemory:
    message: str
    needed_bytes: int
    free_bytes: int
    cause: BaseException | None
    frames: Sequence[str]


def _without_frames(error: OutOfMemory) -> _OutOfMemory:
    """Return the error without the frames that it holds."""
    cause = error.__cause__
    alone = None if cause is None else type(cause)(*cause.args)
    frames = traceback.format_tb((cause or error).__traceback__)
    return _OutOfMemory(str(error), error.needed_bytes, error.free_bytes, alone, frames)
