"""run_prompt(): take the next ready node, gather its inputs, call it, keep what it gave, tell, repeat.

The order of nodes and of messages is ComfyUI's. Plain nodes are called straight on the GPU thread; `async def` nodes
become tasks of the run's own event loop, and others go on while they wait. A node may ask for more inputs first (lazy),
or be replaced by a graph (expansion): it then goes back into the schedule and runs again when that is done.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from contract.errors import EngineError
from contract.graph.arriving import arriving_files, lateness
from contract.graph.dynamic_inputs import nested
from contract.graph.dynamic_prompt import DynamicPrompt
from contract.graph.node_ref import NodeRef
from contract.graph.prompt import Node, is_link
from contract.graph.schedule import Schedule
from contract.graph.signature import Signatures
from contract.graph.spec import NodeRules
from contract.wire import OWN_FILES
from engine.cancel import CancelToken
from engine.errors import Interrupted, NodeFailed, OutOfMemory
from engine.events import (
    EncodedPreview,
    Event,
    MemoryRelieved,
    NodeBlocked,
    NodeFinished,
    NodeProgress,
    NodesCached,
    NodeStarted,
    NodeText,
    NodeWarned,
    OutputReady,
    PreviewMade,
    RunFailed,
    RunInterrupted,
    RunSaving,
    RunStarted,
    RunSucceeded,
)
from engine.log_context import NodeWarning, logged_as
from engine.nodes.base import ExecutionBlocker, NodeClass, NodeContext, NodeEnvironment, Returned
from engine.runtime.cache.instances import InstanceCache
from engine.runtime.cache.store import KeptWarning, NodeResult, ResultCache
from engine.runtime.mapping import blocker_in, calls_of, merge_outputs, merge_ui, with_whole_results
from engine.runtime.outputs import RunFiles
from engine.runtime.request import RunRequest, RunResult
from engine.runtime.run_graph import FindClass, RunGraph

log = logging.getLogger(__name__)

OUT_OF_MEMORY_TIP = (
    "This error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked before you might have "
    "accidentally set the batch_size to a large number."
)
# What ends a process or a task; from a node's own code (a command line's parser, a cancelled request) it is a failure.
NO_ERRORS = (SystemExit, KeyboardInterrupt, asyncio.CancelledError)


class DependencyCycleError(EngineError):
    """Nodes wait for each other; expansion made it so, since validation finds the cycles of a prompt."""

    code = "dependency_cycle"


class ReliefTaken(Protocol):
    """A step that was taken to make room (`engine/memory/relief.py`)."""

    @property
    def step(self) -> str: ...

    @property
    def freed_bytes(self) -> int: ...

    @property
    def changes_arithmetic(self) -> bool: ...


def no_company(is_given_up: Callable[[], bool]) -> AbstractContextManager[bool]:
    """Return the context of a run beside which no other runs."""
    return nullcontext(False)


@dataclass(frozen=True, slots=True)
class RunServices:
    """All a run takes from its engine.

    `device_errors` is entered around node calls and raises a device's errors as ours. `relief` takes one step after the
    other to make room, for a node that one of them said had too little memory; `relieved` ends what its steps changed.
    `begin_node` (id, class) is called before each node, `taken_by_node` after it: what it has done itself for want of
    memory. `make_preview` turns what a node reports
    (`NodeContext.report_preview`) into an encoded picture and its media type, or None. `file_is_there` says whether a
    file that a kept result shows still exists. `alone` waits until no other run is inside of a node, or its argument
    returns True, and yields whether there was one. `hold_place` keeps the place of a run, by its prompt, for the one
    that continues it.
    """

    find_class: FindClass
    environment: NodeEnvironment
    results: ResultCache
    instances: InstanceCache
    signatures: Callable[..., Signatures]
    models: Any
    open_files: Callable[[], RunFiles]
    device_errors: Callable[[], AbstractContextManager[None]]
    relief: Callable[[], Iterator[ReliefTaken]]
    relieved: Callable[[], None]
    file_is_there: Callable[[Mapping[str, Any]], bool]
    begin_node: Callable[[str, str], None] = lambda node_id, class_type: None
    taken_by_node: Callable[[], Sequence[ReliefTaken]] = tuple
    make_preview: Callable[[Any, Any], EncodedPreview | None] = lambda preview, latent_format: None
    alone: Callable[[Callable[[], bool]], AbstractContextManager[bool]] = no_company
    hold_place: Callable[[str], None] = lambda prompt_id: None
    embed_metadata: bool = True


async def run_prompt(
    request: RunRequest, services: RunServices, cancel: CancelToken, on_event: Callable[[Event], None]
) -> RunResult:
    """Run a checked prompt. What fails is told in events and in the result's status; only bugs of ours are raised."""
    return (await run_nodes(request, services, cancel, on_event))()


async def run_nodes(
    request: RunRequest, services: RunServices, cancel: CancelToken, on_event: Callable[[Event], None]
) -> Callable[[], RunResult]:
    """Run a prompt up to its last node. The returned function does the rest; call it once, on any thread.

    When files of the last node are still being written the rest waits for them and tells the end; the next prompt may
    run meanwhile. Else everything is told already.
    """
    files = services.open_files()
    run = _Run(request, services, cancel, on_event, files)
    own = request.extra_data.get(OWN_FILES)
    if isinstance(own, list):
        files.limit_to(map(str, own), lambda: [*run.shown.values(), *run.graph.shown_before.values()])
    try:
        result = await run.run()
    except BaseException:
        files.close()
        raise
    if result is None:
        return run.end
    files.close()
    return lambda: result


@dataclass(frozen=True, slots=True)
class _Call:
    """A node with the inputs that it is called with, as often as it takes."""

    ref: NodeRef
    node: Node
    node_class: NodeClass
    rules: NodeRules
    instance: Any
    inputs: Mapping[str, Sequence[Any]]

    def __str__(self) -> str:
        return f"{self.node.class_type} (node {self.node.id})"


class _Run:
    def __init__(
        self,
        request: RunRequest,
        services: RunServices,
        cancel: CancelToken,
        on_event: Callable[[Event], None],
        files: RunFiles,
    ) -> None:
        self.request = request
        self.services = services
        self.cancel = cancel
        self.emit = on_event
        self.files = files
        self.prompt_id = request.prompt_id
        self.graph = RunGraph(
            DynamicPrompt(request.prompt),
            request.extra_data,
            services.find_class,
            services.environment,
            services.results,
            services.instances,
            services.signatures,
        )
        self.prompt = self.graph.prompt
        arriving = arriving_files(request.extra_data)
        self.schedule = Schedule(
            self.prompt.node, self.graph.rules_of, self.graph.is_known, lambda node: lateness(node, arriving)
        )
        self.executed: list[str] = []
        self.shown: dict[str, Mapping[str, Any]] = {}
        self.expansions: dict[str, list[Returned]] = {}
        self.tasks: dict[str, list[Any]] = {}  # a node's calls, those still running as tasks
        self.watchers: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
        self.inputs: Mapping[str, Sequence[Any]] | None = None  # of the node that runs, for an error's message
        self.saving: NodeRef | None = None  # the last node, while its files are being written
        self.warned: dict[str, list[NodeWarning]] = {}  # by the node that runs
        self.told: set[tuple[str, NodeWarning]] = set()

    async def run(self) -> RunResult | None:
        """Run the prompt; return its result, or None when `end` has to be called for it."""
        loop = asyncio.get_running_loop()
        self.cancel.when_cancelled(partial(_wake_from_elsewhere, loop, self.wake))
        self.emit(RunStarted(self.prompt_id, _now_ms()))
        node_id = next(iter(self.request.prompt), "")
        try:
            node_ids = list(self.request.prompt)
            known = await self.graph.begin(node_ids, self.services.file_is_there, self.request.passing)
            self.emit(NodesCached(self.prompt_id, known, _now_ms()))
            for node_id in known:
                self._tell_warnings_of(node_id)
            self.graph.watch(self.request.outputs)
            for node_id in self.request.outputs:
                self.schedule.add(node_id)
            while not self.schedule.is_empty:
                node_id = await self._next_node()
                self.inputs = None
                if await self._step(node_id):
                    self.schedule.finish(node_id)
                    self.graph.finish(node_id)
                else:
                    self.schedule.put_back(node_id)
                if self.watchers:
                    await asyncio.sleep(0)
            if self.saving is not None:
                self.emit(RunSaving(self.prompt_id))
                return None
            self.emit(RunSucceeded(self.prompt_id, _now_ms()))
            return self._result("success")
        except Interrupted:
            self._tell_interrupted(node_id)
            return self._result("interrupted")
        except _Cycle as cycle:
            self._tell_failed(cycle.node_id, DependencyCycleError("Dependency cycle detected"))
            return self._result("error")
        except NO_ERRORS as raised:
            if _is_being_cancelled():
                raise
            self._tell_failed(node_id, self._failure_of(node_id, raised))
            return self._result("error")
        except Exception as error:  # noqa: BLE001 - the node call
            self._tell_failed(node_id, error)
            return self._result("error")
        finally:
            await self._stop_tasks()

    def end(self) -> RunResult:
        """Wait for the last node's files, and tell of it and of the end."""
        ref = self.saving
        assert ref is not None, "nothing is being saved"
        try:
            with self.services.device_errors():
                self.files.join()
            self.emit(OutputReady(self.prompt_id, ref, self.shown.get(ref.node_id), is_cached=False))
            self.executed.append(ref.node_id)
            self.emit(NodeFinished(self.prompt_id, ref))
            self.emit(RunSucceeded(self.prompt_id, _now_ms()))
            return self._result("success")
        except Exception as error:  # noqa: BLE001 - the writers
            self.shown.pop(ref.node_id, None)
            self._tell_failed(ref.node_id, error)
            return self._result("error")
        finally:
            self.files.close()

    async def _next_node(self) -> str:
        """Return the node to run now; wait for async nodes when nothing else is ready."""
        while True:
            self.cancel.check()
            node_id = self.schedule.next()
            if node_id is not None:
                return node_id
            if not self.schedule.waits_for_outside:
                raise _Cycle(self._blamed_for_cycle())
            await self.wake.wait()
            self.wake.clear()

    def _blamed_for_cycle(self) -> str:
        """Return the node of the client's graph to blame for a cycle, which only an expansion can have made."""
        cycle = self.schedule.cycle()
        shown = ((node_id, self.prompt.get_display_node_id(node_id)) for node_id in cycle)
        return next((display for node_id, display in shown if display != node_id), cycle[0])

    # --- one node ---

    async def _step(self, node_id: str) -> bool:
        """Bring a node forward. True when it is done, False when it waits for something now."""
        ref = self.prompt.ref(node_id)
        known = self.graph.known(node_id)
        if known is not None:
            self._tell_warnings_of(node_id)
            self.emit(OutputReady(self.prompt_id, ref, known.ui, is_cached=True))
            self.emit(NodeFinished(self.prompt_id, ref))
            return True
        node = self.prompt.node(node_id)
        with logged_as(self.prompt_id, ref.real_node_id, node.class_type, self.warned.setdefault(node_id, [])):
            return await self._execute(ref, node)

    async def _execute(self, ref: NodeRef, node: Node) -> bool:
        """Bring a node forward that is not known; True when it is done."""
        node_id = ref.node_id
        node_class, rules = self.graph.node_class(node.class_type), self.graph.rules_of(node)
        if node_id in self.expansions:
            rows = self.expansions.pop(node_id)
            expanded = [value[0] for row in rows if row.expand is not None for value in row.result if is_link(value)]
            self._keep(ref, rules, self._resolved(rows), None, expanded)
            return True
        if node_id in self.tasks:
            outcomes, failed = await self._try_finish(node_id)
            if failed is not None:
                outcomes = await self._start_over(self._call_of(ref, node, node_class, rules)[0], failed)
        else:
            started = await self._start(ref, node, node_class, rules)
            if started is None:
                return False
            outcomes = started
        if any(isinstance(outcome, asyncio.Task) and not outcome.done() for outcome in outcomes):
            self._wait_for_tasks(node_id, outcomes)
            return False
        return await self._take(ref, rules, [self._read(node_class, outcome) for outcome in outcomes])

    async def _start(self, ref: NodeRef, node: Node, node_class: NodeClass, rules: NodeRules) -> list[object] | None:
        """Call a node for the first time; None when it wants lazy inputs before."""
        self.emit(NodeStarted(self.prompt_id, ref))
        call, missing = self._call_of(ref, node, node_class, rules)
        if rules.lazy or missing:
            wanted = await self._wanted_inputs(call, missing)
            if wanted:
                for name in wanted:
                    self.schedule.need(node.id, name)
                return None
        self.services.begin_node(node.id, node.class_type)
        outcomes, failed = await self._try_call(call)
        if failed is None:
            for relief in self.services.taken_by_node():
                self._tell_relief(ref, relief)
            return outcomes
        # Only here is the failed call's traceback gone, and with it what the call had made so far.
        return await self._call_with_relief(call, failed, num_tries=1)

    def _call_of(
        self, ref: NodeRef, node: Node, node_class: NodeClass, rules: NodeRules
    ) -> tuple[_Call, Collection[str]]:
        """Return a node's call with the inputs known now, and the names of those that are not."""
        inputs, missing = self.graph.inputs_of(node, rules)
        self.inputs = inputs
        return _Call(ref, node, node_class, rules, self.graph.instance(node, node_class), inputs), missing

    async def _start_over(self, call: _Call, failed: _OutOfMemory) -> list[object]:
        """Call an async node again that ran out of memory while others ran: first alone, then with relief.

        Alone, what models are in use is its doing, by which the steps are chosen.
        """
        log.warning("%s: %s; again by itself", call, failed.message)
        self._let_results_go()
        self.services.begin_node(call.node.id, call.node.class_type)
        outcomes, again = await self._try_whole_call(call)
        return outcomes if again is None else await self._call_with_relief(call, again, num_tries=2)

    async def _call_with_relief(self, call: _Call, failed: _OutOfMemory, *, num_tries: int) -> list[object]:
        """Call a node again that ran out of memory: without other runs if there were some, then with relief."""
        with self.services.alone(lambda: self.cancel.is_cancelled) as had_company:
            self.cancel.check()
            if had_company:
                log.warning("%s: %s; again while no other prompt runs", call, failed.message)
                self.services.begin_node(call.node.id, call.node.class_type)
                outcomes, again = await self._try_whole_call(call)
                if again is None:
                    return outcomes
                failed, num_tries = again, num_tries + 1
            return await self._relieve(call, failed, num_tries)

    async def _relieve(self, call: _Call, failed: _OutOfMemory, num_tries: int) -> list[object]:
        """Call a node again after each step that makes room, each time to its end: what a step changes holds till then.

        `num_tries` are those before, the last of which `failed`. Raises `OutOfMemory` when no step helped.
        """
        steps: list[str] = []
        try:
            self._let_results_go()
            for relief in self.services.relief():
                steps.append(relief.step)
                log.warning("%s: %s; again after %r", call, failed.message, relief.step)
                self._tell_relief(call.ref, relief)
                outcomes, again = await self._try_whole_call(call)
                if again is None:
                    return outcomes
                failed = again
        finally:
            for relief in self.services.taken_by_node():
                self._tell_relief(call.ref, relief)
            self.services.relieved()
        tried = f"The node was tried {len(steps) + num_tries} times. To make room: {', '.join(dict.fromkeys(steps))}."
        sizes = {"needed_bytes": failed.needed_bytes, "free_bytes": failed.free_bytes}
        raise OutOfMemory(f"{failed.message}\n{tried}", **sizes, frames=failed.frames) from failed.cause

    def _tell_relief(self, ref: NodeRef, relief: ReliefTaken) -> None:
        self.emit(MemoryRelieved(self.prompt_id, ref, relief.step, relief.freed_bytes, relief.changes_arithmetic))

    async def _try_call(self, call: _Call) -> tuple[list[object], _OutOfMemory | None]:
        """Return the results of a node's calls, or the memory error of one, without the frames that it holds."""
        try:
            return await self._call(call), None
        except OutOfMemory as error:
            return [], _told(error)

    async def _try_whole_call(self, call: _Call) -> tuple[list[object], _OutOfMemory | None]:
        """Call as `_try_call` does and wait for the node's tasks; meanwhile no other node begins."""
        outcomes, failed = await self._try_call(call)
        running = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Task)]
        if failed is not None or not running:
            return outcomes, failed
        self.tasks[call.node.id] = outcomes  # so that the run's end finds them
        for task in running:
            task.add_done_callback(lambda _: self.wake.set())
        while not all(task.done() for task in running):
            self.wake.clear()
            self.cancel.check()
            await self.wake.wait()
        return await self._try_finish(call.node.id)

    async def _try_finish(self, node_id: str) -> tuple[list[object], _OutOfMemory | None]:
        """Return the results of a node's tasks, all of which are done, or the memory error of one."""
        calls = self.tasks.pop(node_id)
        try:
            with self.services.device_errors():
                return [await call if isinstance(call, asyncio.Task) else call for call in calls], None
        except OutOfMemory as error:
            return [], _told(error)
        finally:
            calls.clear()  # the failed task has this frame in its traceback, and would be held by it

    async def _call(self, call: _Call) -> list[object]:
        """Call a node for each element of its inputs: what the calls gave, or their tasks."""
        outcomes: list[Any] = []
        rules = call.rules
        with self.services.device_errors():
            for index, arguments in enumerate(calls_of(call.inputs, rules.input_is_list)):
                self.cancel.check()
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
        needed = {link.source for node_id in self.schedule.pending for link in self.prompt.node(node_id).links}
        for rows in self.expansions.values():
            needed |= {value[0] for row in rows if row.expand is not None for value in row.result if is_link(value)}
        self.graph.forget_all_but(needed)

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
            raise self._failure_of(node_id, raised) from raised

    def _failure_of(self, node_id: str, raised: BaseException) -> NodeFailed:
        class_type = self.prompt.node(node_id).class_type
        failure = NodeFailed(node_id, class_type, f"the node raised {raised!r}, which ends a process or a task")
        failure.__cause__ = raised
        return failure

    async def _wanted_inputs(self, call: _Call, missing: Collection[str]) -> list[str]:
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
        self.emit(NodeBlocked(self.prompt_id, node.id, node.class_type, list(self.executed), message))
        return ExecutionBlocker(None)  # it is told once

    def _read(self, node_class: NodeClass, outcome: object) -> Returned:
        if isinstance(outcome, asyncio.Task):
            outcome = outcome.result()
        return Returned(outcome) if isinstance(outcome, ExecutionBlocker) else node_class.returned(outcome)

    def _wait_for_tasks(self, node_id: str, outcomes: list[object]) -> None:
        self.tasks[node_id] = outcomes
        let_go = self.schedule.hold(node_id)

        async def watch() -> None:
            running = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Task)]
            await asyncio.gather(*running, return_exceptions=True)
            let_go()
            self.wake.set()

        watcher = asyncio.ensure_future(watch())
        self.watchers.add(watcher)
        watcher.add_done_callback(self.watchers.discard)

    # --- what a node gave ---

    async def _take(self, ref: NodeRef, rules: NodeRules, returns: list[Returned]) -> bool:
        ui = merge_ui(returns)
        results = [item.result for item in returns if item.result is not None]
        if ui is not None and self.files.is_writing and self.schedule.has_one_left and not _expands(returns):
            self.shown[ref.node_id] = ui
            outputs = merge_outputs(results, rules) if results else []
            self._put(ref.node_id, outputs, ui)
            self.saving = ref
            return True
        with self.services.device_errors():
            self.files.join()
        if ui is not None:
            self.shown[ref.node_id] = ui
            self.emit(OutputReady(self.prompt_id, ref, ui, is_cached=False))
        if _expands(returns):
            await self._expand(ref.node_id, rules, returns)
            return False
        self._keep(ref, rules, results, ui)
        return True

    def _keep(
        self,
        ref: NodeRef,
        rules: NodeRules,
        results: Sequence[object],
        ui: Mapping[str, object] | None,
        expanded: Sequence[str] = (),
    ) -> None:
        outputs = merge_outputs(results, rules) if results else []
        self._put(ref.node_id, outputs, ui if ui is not None else self.shown.get(ref.node_id), expanded)
        self.executed.append(ref.node_id)
        self.emit(NodeFinished(self.prompt_id, ref))

    def _put(
        self, node_id: str, outputs: list[list[object]], ui: Mapping[str, object] | None, expanded: Sequence[str] = ()
    ) -> None:
        """Put a node's result, with the warnings of the node, of those before it and of those it expanded into."""
        node = self.prompt.node(node_id)
        sources = (*(link.source for link in node.links), *expanded)
        before = (result.warnings for source in sources if (result := self.graph.known(source)) is not None)
        warnings = dict.fromkeys(kept for of_source in before for kept in of_source)
        real_id = self.prompt.get_real_node_id(node_id)
        own = (KeptWarning(real_id, node.class_type, warning) for warning in self.warned.pop(node_id, ()))
        self.graph.put(node_id, NodeResult(outputs, ui, (*warnings, *own)))
        self._tell_warnings_of(node_id)

    def _tell_warnings_of(self, node_id: str) -> None:
        """Tell the warnings of a known node that were not told in this run."""
        result = self.graph.known(node_id)
        for kept in result.warnings if result is not None else ():
            key = kept.class_type, kept.warning
            if key not in self.told:
                self.told.add(key)
                warned_id, warning = self._node_of(kept, node_id), kept.warning
                self.emit(NodeWarned(self.prompt_id, warned_id, kept.class_type, warning.type, warning.message))

    def _node_of(self, kept: KeptWarning, node_id: str) -> str:
        """Return the node of this prompt that a warning is of, which an earlier prompt may have had under another id.

        It is `node_id`, whose result has the warning, where no better one is known.
        """
        is_there = self.prompt.has_node(kept.node_id)
        is_own = self.prompt.node(node_id).class_type == kept.class_type
        if is_there and not is_own and self.prompt.node(kept.node_id).class_type == kept.class_type:
            return kept.node_id
        return self.prompt.get_real_node_id(node_id)

    async def _expand(self, node_id: str, rules: NodeRules, returns: list[Returned]) -> None:
        """Add what the node expanded into to the graph; the node waits for the links among its results."""
        graphs = [item.expand for item in returns if item.expand is not None]
        for node in await self.graph.expand(node_id, graphs):
            if self.graph.rules(node.class_type).is_output:
                self.schedule.add(node.id)
        rows: list[Returned] = []
        for item in returns:
            result = item.result
            if isinstance(result, ExecutionBlocker):
                result = (result,) * len(rules.output_types)
            result = () if result is None else tuple(result)
            rows.append(item._replace(result=result))
            if item.expand is not None:
                for value in result:
                    if is_link(value):
                        self.graph.wait_for(value[0], node_id)
                        self.schedule.wait_for(value[0], node_id)
        self.expansions[node_id] = rows

    def _resolved(self, rows: Sequence[Returned]) -> list[tuple[Any, ...]]:
        """Return the results of an expansion, with its links replaced by their values."""
        resolved: list[tuple[Any, ...]] = []
        for row in rows:
            if row.expand is None:
                resolved.append(row.result)
                continue
            values: list[Any] = []
            for value in row.result:
                if is_link(value):
                    source = self.graph.known(value[0])
                    assert source is not None, "an expansion went on before what it waits for"
                    values.extend(source.outputs[value[1]])
                else:
                    values.append(value)
            resolved.append(tuple(values))
        return resolved

    # --- what a node may touch ---

    def _context(self, ref: NodeRef, index: int) -> NodeContext:
        wants_previews = self.request.wants_previews
        return NodeContext(
            ref.node_id,
            self.prompt_id,
            self.cancel,
            partial(self._progress, ref),
            partial(self._preview, ref) if wants_previews else None,
            self.services.models,
            self.files,
            self.services.embed_metadata,
            index,
            lambda text: self.emit(NodeText(self.prompt_id, ref, text)),
            partial(self.graph.is_streamed, ref.node_id),
            self._continued,
        )

    def _continued(self, changed: Collection[str]) -> None:
        """Prepare for a prompt that goes on with this run: it gets its instances, not what its counters change."""
        self.graph.forget_after_run(changed)
        self.services.hold_place(self.prompt_id)

    def _progress(self, ref: NodeRef, value: float, maximum: float) -> None:
        self.emit(NodeProgress(self.prompt_id, ref, value, maximum))
        self.cancel.check()

    def _preview(self, ref: NodeRef, preview: object, latent_format: object = None) -> None:
        made = self.services.make_preview(preview, latent_format)
        if made is not None:
            self.emit(PreviewMade(self.prompt_id, ref, *made))

    # --- the end ---

    def _result(self, status: Any) -> RunResult:
        outputs: dict[str, Mapping[str, Any]] = {}
        meta: dict[str, Mapping[str, Any]] = {}
        self.shown.update(self.graph.shown_before)
        for node_id in sorted(self.shown, key=self._place_of()):
            ref = self.prompt.ref(node_id)
            outputs[node_id] = self.shown[node_id]
            meta[node_id] = {
                "node_id": node_id,
                "display_node": ref.display_node_id,
                "parent_node": ref.parent_node_id,
                "real_node_id": ref.real_node_id,
            }
        return RunResult(status, outputs, meta)

    def _place_of(self) -> Callable[[str], int]:
        places = {node_id: index for index, node_id in enumerate(self.request.prompt)}
        return lambda node_id: places[self.prompt.get_real_node_id(node_id)]

    def _tell_interrupted(self, node_id: str) -> None:
        real_id = self.prompt.get_real_node_id(node_id)
        class_type = self.prompt.node(real_id).class_type
        self.emit(RunInterrupted(self.prompt_id, real_id, class_type, list(self.executed), _now_ms()))

    def _tell_failed(self, node_id: str, error: Exception) -> None:
        real_id = self.prompt.get_real_node_id(node_id)
        class_type = self.prompt.node(real_id).class_type
        cause = error.__cause__ if isinstance(error, EngineError) and error.__cause__ is not None else error
        is_cycle = isinstance(error, DependencyCycleError)
        if not is_cycle:
            with logged_as(self.prompt_id, real_id, class_type):
                log.error("%s (node %s) failed", class_type, node_id, exc_info=error)
        frames = list(error.frames) if isinstance(error, OutOfMemory) else []
        frames = frames or traceback.format_tb(cause.__traceback__)
        tip = OUT_OF_MEMORY_TIP if isinstance(error, OutOfMemory) else ""
        inputs = self.inputs or {}
        self.emit(
            RunFailed(
                prompt_id=self.prompt_id,
                node_id=real_id,
                class_type=class_type,
                executed=list(self.executed),
                code=error.code if isinstance(error, EngineError) else NodeFailed.code,
                exception_type="graph.DependencyCycleError" if is_cycle else _type_name(cause),
                exception_message=str(error) if is_cycle else f"{error}\n{tip}",
                traceback=[] if is_cycle else frames,
                current_inputs={name: [_shown_value(item) for item in values] for name, values in inputs.items()},
                current_outputs=list(self.request.prompt),
                timestamp_ms=_now_ms(),
            )
        )

    async def _stop_tasks(self) -> None:
        running = [call for calls in self.tasks.values() for call in calls if isinstance(call, asyncio.Task)]
        for task in (*running, *self.watchers):
            task.cancel()
        await asyncio.gather(*running, *self.watchers, return_exceptions=True)


def _is_being_cancelled() -> bool:
    """Return True where the run's own task is cancelled from outside."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _expands(returns: Sequence[Returned]) -> bool:
    return any(item.expand is not None for item in returns)


@dataclass(frozen=True, slots=True)
class _OutOfMemory:
    message: str
    needed_bytes: int
    free_bytes: int
    cause: BaseException | None
    frames: Sequence[str]


def _told(error: OutOfMemory) -> _OutOfMemory:
    """Return the error without the frames that it holds."""
    cause = error.__cause__
    alone = None if cause is None else type(cause)(*cause.args)
    frames = traceback.format_tb((cause or error).__traceback__)
    return _OutOfMemory(str(error), error.needed_bytes, error.free_bytes, alone, frames)


class _Cycle(Exception):
    def __init__(self, node_id: str) -> None:
        super().__init__(node_id)
        self.node_id = node_id


def _wake_from_elsewhere(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Wake a run from the thread that cancels it, which may be after the run's end."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shown_value(value: object) -> object:
    return value if value is None or isinstance(value, (int, float, bool, str)) else str(value)
