"""run_nodes(): take the next ready node, gather its inputs, call it, keep what it gave, tell, repeat.

The order of nodes and of messages is ComfyUI's. Plain nodes are called straight on the GPU thread; `async def` nodes
become tasks of the run's own event loop, and others go on while they wait. A node may ask for more inputs first (lazy),
or be replaced by a graph (expansion): it then goes back into the schedule and runs again when that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from darkroom.contract.graph.arriving import arriving_files, lateness
from darkroom.contract.graph.dynamic_prompt import DynamicPrompt
from darkroom.contract.graph.node_ref import NodeRef
from darkroom.contract.graph.prompt import Node, is_link
from darkroom.contract.graph.schedule import Schedule
from darkroom.contract.graph.spec import NodeRules
from darkroom.contract.wire import OWN_FILES
from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import Interrupted
from darkroom.engine.events import (
    Event,
    NodeFinished,
    NodesCached,
    NodeStarted,
    OutputReady,
    RunSaving,
    RunStarted,
    RunSucceeded,
)
from darkroom.engine.log_context import logged_as
from darkroom.engine.nodes.base import ExecutionBlocker, NodeClass, Returned
from darkroom.engine.runtime.cache.providers import ProvidedResults
from darkroom.engine.runtime.cache.store import KeptWarning, NodeResult
from darkroom.engine.runtime.mapping import merge_outputs, merge_ui
from darkroom.engine.runtime.node_calls import NodeCalls
from darkroom.engine.runtime.outputs import RunFiles
from darkroom.engine.runtime.request import RunRequest, RunResult
from darkroom.engine.runtime.run_graph import RunGraph
from darkroom.engine.runtime.run_report import DependencyCycleError, RunReport, now_ms
from darkroom.engine.runtime.run_services import RunServices
from darkroom.engine.runtime.running_part import running_part

# What ends a process or a task; from a node's own code (a command line's parser, a cancelled request) it is a failure.
NO_ERRORS = (SystemExit, KeyboardInterrupt, asyncio.CancelledError)


async def run_nodes(
    request: RunRequest, services: RunServices, cancel: CancelToken, on_event: Callable[[Event], None]
) -> Callable[[], RunResult]:
    """Run a checked prompt up to its last node. The returned function does the rest; call it once, on any thread.

    What fails is in events and in the result's status; only errors of the engine itself are raised.
    When files of the last node are still being written the rest waits for them and tells the end; the next prompt may
    run meanwhile. Else everything is told already.
    """
    files = services.open_files()
    run = _Run(request, services, cancel, on_event, files)
    own = request.extra_data.get(OWN_FILES)
    if isinstance(own, list):
        files.limit_to(map(str, own), lambda: [*run.report.shown.values(), *run.graph.shown_before.values()])
    try:
        result = await run.run()
    except BaseException:
        files.close()
        raise
    if result is None:
        return run.end
    files.close()
    return lambda: result


class _Run:
    """Execution of one prompt, from its first node to its last: order, expansions, and what is kept of each node.

    It is large because a node that waits, for inputs, tasks or an expansion, is taken up again in the same loop.
    """

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
        self.running = running_part(request, services.find_class)
        self.provided = ProvidedResults(services.cache_providers, request.prompt_id)
        self.graph = RunGraph(
            DynamicPrompt(request.prompt, self.running),
            request.extra_data,
            services.find_class,
            services.environment,
            services.results,
            services.instances,
            services.signatures,
            self.provided,
        )
        self.prompt = self.graph.prompt
        arriving = arriving_files(request.extra_data)
        self.schedule = Schedule(
            self.prompt.node, self.graph.rules_of, self.graph.is_known, lambda node: lateness(node, arriving)
        )
        self.expansions: dict[str, list[Returned]] = {}
        self.watchers: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
        self.saving: NodeRef | None = None  # the last node, while its files are being written
        self.report = RunReport(request, self.graph, on_event)
        needed = partial(_needed, self.prompt, self.schedule, self.expansions)  # no method: it would hold the run
        self.calls = NodeCalls(request, services, cancel, self.report, self.graph, files, self.wake, needed)

    async def run(self) -> RunResult | None:
        """Run the prompt; return its result, or None when `end` has to be called for it."""
        loop = asyncio.get_running_loop()
        self.cancel.when_cancelled(partial(_wake_from_elsewhere, loop, self.wake))
        self.emit(RunStarted(self.prompt_id, now_ms()))
        node_id = next(iter(self.request.prompt), "")
        try:
            self.provided.begin()
            node_ids = list(self.running)
            known = await self.graph.begin(node_ids, self.services.file_is_there, self.request.passing)
            self.emit(NodesCached(self.prompt_id, known, now_ms()))
            for node_id in known:
                self.report.warnings_of(node_id)
            roots = self.graph.roots_of(self.request.outputs)
            self.graph.watch(roots)
            for node_id in roots:
                self.schedule.add(node_id)
            while not self.schedule.is_empty:
                node_id = await self._next_node()
                self.calls.inputs = None
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
            self.emit(RunSucceeded(self.prompt_id, now_ms()))
            return self.report.result("success")
        except Interrupted:
            self.report.interrupted(node_id)
            return self.report.result("interrupted")
        except _Cycle as cycle:
            self._failed(cycle.node_id, DependencyCycleError("Dependency cycle detected"))
            return self.report.result("error")
        except NO_ERRORS as raised:
            if _is_being_cancelled():
                raise
            self._failed(node_id, self.calls.failure_of(node_id, raised))
            return self.report.result("error")
        except Exception as error:  # noqa: BLE001 - the node call
            self._failed(node_id, error)
            return self.report.result("error")
        finally:
            await self._stop_tasks()
            await self.provided.end()

    def end(self) -> RunResult:
        """Wait for the last node's files, and tell of it and of the end."""
        ref = self.saving
        assert ref is not None, "nothing is being saved"
        try:
            with self.services.device_errors():
                self.files.join()
            self.emit(OutputReady(self.prompt_id, ref, self.report.shown.get(ref.node_id), is_cached=False))
            self.report.finished(ref)
            self.emit(RunSucceeded(self.prompt_id, now_ms()))
            return self.report.result("success")
        except Exception as error:  # noqa: BLE001 - the writers
            self.report.shown.pop(ref.node_id, None)
            self._failed(ref.node_id, error)
            return self.report.result("error")
        finally:
            self.files.close()

    def _failed(self, node_id: str, error: Exception) -> None:
        self.report.failed(node_id, error, self.calls.inputs or {})

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
        if known is None and self._is_new_expansion(node_id) and await self.graph.find_provided(node_id):
            known = self.graph.known(node_id)
        if known is not None:
            self.report.warnings_of(node_id)
            self.emit(OutputReady(self.prompt_id, ref, known.ui, is_cached=True))
            self.emit(NodeFinished(self.prompt_id, ref))
            return True
        node = self.prompt.node(node_id)
        with logged_as(self.prompt_id, ref.real_node_id, node.class_type, self.report.warned.setdefault(node_id, [])):
            return await self._execute(ref, node)

    def _is_new_expansion(self, node_id: str) -> bool:
        """Return True for a node of an expansion that has not begun; the client's nodes were asked for at the start."""
        has_begun = node_id in self.expansions or node_id in self.calls.tasks
        return not has_begun and self.prompt.get_parent_node_id(node_id) is not None

    async def _execute(self, ref: NodeRef, node: Node) -> bool:
        """Bring a node forward that is not known; True when it is done."""
        node_id = ref.node_id
        node_class, rules = self.graph.node_class(node.class_type), self.graph.rules_of(node)
        if node_id in self.expansions:
            rows = self.expansions.pop(node_id)
            expanded = [value[0] for row in rows if row.expand is not None for value in row.result if is_link(value)]
            self._keep(ref, rules, self._resolved(rows), None, expanded)
            return True
        if node_id in self.calls.tasks:
            outcomes, failed = await self.calls.try_finish(node_id)
            if failed is not None:
                outcomes = await self.calls.start_over(self.calls.of(ref, node, node_class, rules)[0], failed)
        else:
            started = await self._start(ref, node, node_class, rules)
            if started is None:
                return False
            outcomes = started
        if any(isinstance(outcome, asyncio.Task) and not outcome.done() for outcome in outcomes):
            self._wait_for_tasks(node_id, outcomes)
            return False
        return await self._take(ref, rules, [self.calls.read(node_class, outcome) for outcome in outcomes])

    async def _start(self, ref: NodeRef, node: Node, node_class: NodeClass, rules: NodeRules) -> list[object] | None:
        """Call a node for the first time; None when it wants lazy inputs before."""
        self.emit(NodeStarted(self.prompt_id, ref))
        call, missing = self.calls.of(ref, node, node_class, rules)
        if rules.lazy or missing:
            wanted = await self.calls.wanted_inputs(call, missing)
            if wanted:
                for name in wanted:
                    self.schedule.need(node.id, name)
                return None
        return await self.calls.first(call)

    def _wait_for_tasks(self, node_id: str, outcomes: list[object]) -> None:
        self.calls.tasks[node_id] = outcomes
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
            self.report.shown[ref.node_id] = ui
            outputs = merge_outputs(results, rules) if results else []
            self._put(ref.node_id, outputs, ui)
            self.saving = ref
            return True
        with self.services.device_errors():
            self.files.join()
        if ui is not None:
            self.report.shown[ref.node_id] = ui
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
        self._put(ref.node_id, outputs, ui if ui is not None else self.report.shown.get(ref.node_id), expanded)
        self.report.finished(ref)

    def _put(
        self, node_id: str, outputs: list[list[object]], ui: Mapping[str, object] | None, expanded: Sequence[str] = ()
    ) -> None:
        """Put a node's result, with the warnings of the node, of those before it and of those it expanded into."""
        node = self.prompt.node(node_id)
        sources = (*(link.source for link in node.links), *expanded)
        before = (result.warnings for source in sources if (result := self.graph.known(source)) is not None)
        warnings = dict.fromkeys(kept for of_source in before for kept in of_source)
        real_id = self.prompt.get_real_node_id(node_id)
        own = (KeptWarning(real_id, node.class_type, warning) for warning in self.report.warned.pop(node_id, ()))
        self.graph.put(node_id, NodeResult(outputs, ui, (*warnings, *own)))
        self.report.warnings_of(node_id)

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

    async def _stop_tasks(self) -> None:
        watchers = list(self.watchers)
        for task in watchers:
            task.cancel()
        await self.calls.stop()
        await asyncio.gather(*watchers, return_exceptions=True)


def _is_being_cancelled() -> bool:
    """Return True where the run's own task is cancelled from outside."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _expands(returns: Sequence[Returned]) -> bool:
    return any(item.expand is not None for item in returns)


def _needed(prompt: DynamicPrompt, schedule: Schedule, expansions: Mapping[str, Sequence[Returned]]) -> set[str]:
    """Return the nodes whose results unfinished nodes take."""
    needed = {link.source for node_id in schedule.pending for link in prompt.node(node_id).links}
    for rows in expansions.values():
        needed |= {value[0] for row in rows if row.expand is not None for value in row.result if is_link(value)}
    return needed


class _Cycle(Exception):
    def __init__(self, node_id: str) -> None:
        super().__init__(node_id)
        self.node_id = node_id


def _wake_from_elsewhere(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Wake a run from the thread that cancels it, which may be after the run's end."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
