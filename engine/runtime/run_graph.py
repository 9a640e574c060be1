"""Graph of one run: nodes, their classes, their keys, and the results so far."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from darkroom.contract.graph.consumers import Consumers
from darkroom.contract.graph.dynamic_inputs import expanded, nested
from darkroom.contract.graph.dynamic_prompt import DynamicPrompt, NodeNotFoundError
from darkroom.contract.graph.loops import NO_LOOPS, Loop, LoopNodes, find_loops
from darkroom.contract.graph.prompt import Node, is_link
from darkroom.contract.graph.signature import Signatures
from darkroom.contract.graph.spec import NodeRules, Values
from darkroom.contract.graph.validate import cast_value
from darkroom.engine.nodes.base import NodeClass, NodeEnvironment
from darkroom.engine.runtime.cache.instances import InstanceCache
from darkroom.engine.runtime.cache.providers import ProvidedResults
from darkroom.engine.runtime.cache.store import NodeResult, ResultCache
from darkroom.engine.runtime.mapping import calls_of

log = logging.getLogger(__name__)

FindClass = Callable[[str], NodeClass | None]
FileCheck = Callable[[Mapping[str, Any]], bool]


class RunClasses:
    """The classes of a run's nodes. Apart from the graph, so that what holds it holds no results."""

    def __init__(self, find_class: FindClass, environment: NodeEnvironment) -> None:
        self._find_class = find_class
        self._environment = environment
        self._known: dict[str, tuple[NodeClass, NodeRules]] = {}

    def node_class(self, class_type: str) -> NodeClass:
        """Return the class of that name. Raises NodeNotFoundError for an unknown one."""
        return self._of(class_type)[0]

    def rules(self, class_type: str) -> NodeRules:
        """Return the rules of a class as they were when the run first met it."""
        return self._of(class_type)[1]

    def _of(self, class_type: str) -> tuple[NodeClass, NodeRules]:
        known = self._known.get(class_type)
        if known is None:
            found = self._find_class(class_type)
            if found is None:
                raise NodeNotFoundError(f"Node class {class_type} does not exist")
            known = self._known[class_type] = (found, found.rules(self._environment))
        return known


class RunGraph:
    """The graph of a run with its results.

    `results` has the nodes whose outputs are known and may still be needed, `shown_before` what cached nodes show.
    """

    def __init__(
        self,
        prompt: DynamicPrompt,
        extra_data: Mapping[str, object],
        find_class: FindClass,
        environment: NodeEnvironment,
        cache: ResultCache,
        instances: InstanceCache,
        signatures: Callable[[Callable[[str], Node | None], Callable[[str], NodeRules]], Signatures],
        provided: ProvidedResults,
    ) -> None:
        self.prompt = prompt
        self.results: dict[str, NodeResult] = {}
        self.shown_before: dict[str, Mapping[str, Any]] = {}
        self._extra_data = extra_data
        self._environment = environment
        self._cache = cache
        self._instances = instances
        self._provided = provided
        classes = RunClasses(find_class, environment)
        self.node_class, self.rules = classes.node_class, classes.rules
        self._expanded: dict[str, NodeRules] = {}  # of the nodes with dynamic inputs
        self._keys = signatures(prompt.find, classes.rules)
        self._consumers = Consumers() if cache.forgets_within_run else None
        self._told_prompt = prompt.get_original_prompt()
        self._loops: dict[str, Loop] = {}  # by end, those of expansions too
        self._found_loops = NO_LOOPS
        self._passing: set[str] = set()  # nodes whose results are not kept after the run

    # --- keys and results ---

    async def begin(
        self, node_ids: Sequence[str], file_is_there: FileCheck, passing: Collection[str] = ()
    ) -> list[str]:
        """Make the keys of the client's nodes and take what the cache has of them; which are known is returned.

        Results of `passing` nodes and of those after them are neither taken nor kept.
        """
        nodes = [self.prompt.node(node_id) for node_id in node_ids]
        fingerprints = await self._fingerprints(nodes)
        self._keys.add(node_ids, fingerprints)
        self._find_loops(nodes)
        self._told_prompt = _with_fingerprints(self.prompt.get_original_prompt(), fingerprints)
        classes = {node.id: node.class_type for node in nodes}
        self._cache.begin({node_id: self._keys[node_id] for node_id in node_ids}, classes)
        self._instances.begin(classes)
        self.forget_after_run(passing)
        known: list[str] = []
        for node_id in node_ids:
            result = self._cache.get(None, self._keys[node_id])
            if result is not None and result.ui is not None and not _files_are_there(result.ui, file_is_there):
                self._cache.drop(None, self._keys[node_id])
                continue
            if result is not None:
                self._take(node_id, result)
            elif not await self.find_provided(node_id):
                continue
            known.append(node_id)
        return known

    async def find_provided(self, node_id: str) -> bool:
        """Take a node's result from a provider of cached results; True where one has it."""
        if self._provided.is_empty or self._is_passing(node_id):
            return False
        class_type, key = self.prompt.node(node_id).class_type, self._keys[node_id]
        result = await self._provided.find(node_id, class_type, key)
        if result is None or len(result.outputs) != len(self.rules(class_type).output_types):
            return False
        self._cache.put(self.prompt.get_parent_node_id(node_id), key, result)
        self._take(node_id, result)
        return True

    def _find_loops(self, nodes: Sequence[Node]) -> None:
        named = {node.id: node for node in nodes}
        self._found_loops = find_loops(named, lambda class_type: self.rules(class_type).facts.loop)
        self._loops = dict(self._found_loops.by_end)

    def roots_of(self, outputs: Sequence[str]) -> list[str]:
        """Return the nodes to run for these outputs: for those within a loop its end."""
        return self._found_loops.roots_of(outputs)

    def loop_of(self, node_id: str) -> LoopNodes | None:
        """Return the loop that a node ends, or that its end has opened by expanding into it; None without one."""
        node = self.prompt.node(node_id)
        opened = node.raw.get("loop") if self.prompt.get_parent_node_id(node_id) is not None else None
        collects = opened.get("collects") if isinstance(opened, Mapping) else None
        loop = self._loops.get(node_id if collects is None or opened is None else str(opened.get("end")))
        if loop is None:
            return None
        body = {item: self.prompt.node(item) for item in loop.body}
        inner = {item: self._loops[item] for item in loop.body if item in self._loops}
        start, end = self.prompt.node(loop.start), self.prompt.node(loop.end)
        return LoopNodes(start, end, body, inner, collects, self.prompt.num_nodes)

    def watch(self, outputs: Sequence[str]) -> None:
        """Track the results that these outputs still need, so that the cache can free others."""
        if self._consumers is not None:
            self._consumers.add_needed(outputs, self.prompt.find, self.is_known)

    def finish(self, node_id: str) -> None:
        """Record that a node has run; release the results that only it still needed."""
        if self._consumers is None:
            return
        for free in self._consumers.finish(node_id):
            if self.results.pop(free, None) is not None:
                self._cache.consumed(self.prompt.get_parent_node_id(free), self._keys[free])

    def wait_for(self, source: str, node_id: str) -> None:
        """Make an expanding node wait for a result of its expansion."""
        if self._consumers is not None:
            self._consumers.hold(source, node_id)

    def forget_all_but(self, needed: Iterable[str]) -> None:
        """Let go of every result but those of these nodes, in the cache too. What is needed after all runs again."""
        self.results = {node_id: self.results[node_id] for node_id in needed if node_id in self.results}
        self._cache.forget_results()

    def forget_after_run(self, node_ids: Collection[str]) -> None:
        """Keep results of these nodes and of those after them no longer than the run, also those known already."""
        if not node_ids:
            return
        takers: dict[str, list[str]] = {}
        for node in map(self.prompt.node, self.prompt.all_node_ids()):
            for link in node.links:
                takers.setdefault(link.source, []).append(node.id)
        found = [node_id for node_id in node_ids if self.prompt.has_node(node_id)]
        while found:
            node_id = found.pop()
            if node_id not in self._passing:
                self._passing.add(node_id)
                self._cache.drop(self.prompt.get_parent_node_id(node_id), self._keys[node_id])
                found.extend(takers.get(node_id, ()))

    def _is_passing(self, node_id: str) -> bool:
        """Return True for a passing node, and for one into which such a node has expanded."""
        found: str | None = node_id
        while found is not None and found not in self._passing:
            found = self.prompt.get_parent_node_id(found)
        return found is not None

    async def expand(self, owner: str, graphs: Iterable[Mapping[str, object]]) -> list[Node]:
        """Add the nodes a node expanded into, in all its calls together."""
        added = [node for graph in graphs for node in self.prompt.expand(owner, graph)]
        for node in added:
            self.rules(node.class_type)  # an unknown class is the expanding node's error
        for node in added:
            copied = node.raw.get("loop")
            if isinstance(copied, Mapping) and "start" in copied:
                self._loops[node.id] = Loop(copied["start"], node.id, tuple(copied["body"]))
        self._keys.add([node.id for node in added], await self._fingerprints(added))
        classes = {node.id: node.class_type for node in added}
        self._cache.expand(owner, {node.id: self._keys[node.id] for node in added}, classes)
        self._instances.expand(owner, classes)
        if self._consumers is not None:
            for node in added:
                self._consumers.add(node)
        return added

    def known(self, node_id: str) -> NodeResult | None:
        """Return a node's result: its own, or that of a node with the same key."""
        result = self.results.get(node_id)
        if result is None:
            key = self._keys.get(node_id)
            if key is not None:
                result = self._cache.get(self.prompt.get_parent_node_id(node_id), key)
                if result is not None:
                    self._take(node_id, result)
        return result

    def _take(self, node_id: str, result: NodeResult) -> None:
        self.results[node_id] = result
        if result.ui is not None:
            self.shown_before[node_id] = result.ui

    def is_known(self, node_id: str) -> bool:
        return node_id in self.results or self.known(node_id) is not None

    def put(self, node_id: str, result: NodeResult) -> None:
        self.results[node_id] = result
        if self._passing and self._is_passing(node_id):
            return
        self._cache.put(self.prompt.get_parent_node_id(node_id), self._keys[node_id], result)
        if not self._provided.is_empty:
            self._provided.store(node_id, self.prompt.node(node_id).class_type, self._keys[node_id], result)

    def instance(self, node: Node, node_class: NodeClass) -> object:
        group = self.prompt.get_parent_node_id(node.id)
        return self._instances.get(group, node.id, node.class_type, node_class.instance)

    def is_streamed(self, node_id: str) -> bool:
        """Return True where one input alone takes the node's results, and takes them in pieces.

        An output node that others take results from passes on what it got: they would make the pieces a second time.
        """
        takers = self._takers_of(node_id)
        if len(takers) != 1:
            return False
        node, name = takers[0]
        rules = self.rules_of(node)
        return name in rules.streamed and not (rules.is_output and self._takers_of(node.id))

    def comes_as_list(self, node_id: str, name: str) -> bool:
        """Return True where the source of a node's input gives a list between nodes, and for a value."""
        value = self.prompt.node(node_id).inputs.get(name)
        if not is_link(value):
            return True
        lists_out = self.rules_of(self.prompt.node(value[0])).lists_out
        slot: int = value[1]
        return slot < len(lists_out) and lists_out[slot]

    def _takers_of(self, node_id: str) -> list[tuple[Node, str]]:
        """Return the inputs that take results of a node."""
        return [
            (node, name)
            for node in map(self.prompt.node, self.prompt.all_node_ids())
            for name, value in node.inputs.items()
            if is_link(value) and value[0] == node_id
        ]

    # --- inputs ---

    def rules_of(self, node: Node) -> NodeRules:
        """Return the rules of a node's class with the inputs that this node has, found once a run."""
        rules = self.rules(node.class_type)
        if not rules.is_dynamic:
            return rules
        found = self._expanded.get(node.id)
        if found is None:
            found = self._expanded[node.id] = expanded(rules, node.inputs)
        return found

    def inputs_of(self, node: Node, rules: NodeRules) -> tuple[dict[str, Sequence[Any]], set[str]]:
        """Return the lists of values of a node's inputs, and the names of links without a result yet."""
        values: dict[str, Sequence[Any]] = {}
        missing: set[str] = set()
        results = self.results
        for name, value in node.inputs.items():
            spec = rules.inputs.get(name)
            if type(value) is list and is_link(value) and name not in rules.raw_links:
                source = results.get(value[0]) or self.known(value[0])
                if source is None or value[1] >= len(source.outputs):
                    missing.add(name)
                    values[name] = (None,)
                else:
                    values[name] = source.outputs[value[1]]
            elif spec is not None:
                values[name] = (cast_value(spec, value),)
            elif rules.takes_any_value:
                values[name] = (value,)
        for name, wanted in rules.hidden.items():
            values[name] = (self._hidden(wanted, node.id),)
        return values, missing

    def _hidden(self, wanted: str, node_id: str) -> Any:
        if wanted == "UNIQUE_ID":
            return node_id
        if wanted == "PROMPT":
            return self._told_prompt
        if wanted == "DYNPROMPT":
            return self.prompt
        return self._extra_data.get(wanted.lower())  # EXTRA_PNGINFO, AUTH_TOKEN_COMFY_ORG, ...

    async def _fingerprints(self, nodes: Iterable[Node]) -> dict[str, object]:
        found: dict[str, Any] = {}
        for node in nodes:
            node_class, rules = self.node_class(node.class_type), self.rules_of(node)
            if rules.has_fingerprint:
                found[node.id] = await self._fingerprint(node, node_class, rules)
        return found

    async def _fingerprint(self, node: Node, node_class: NodeClass, rules: NodeRules) -> object:
        """Return the state that a node's result depends on besides its inputs; NaN, equal to nothing, if unknown."""
        if "is_changed" in node.raw:
            return node.raw["is_changed"]
        values: dict[str, Sequence[Any]] = {}
        for name, value in node.inputs.items():
            spec = rules.inputs.get(name)
            if is_link(value) and name not in rules.raw_links:
                values[name] = (None,)  # only constants tell whether a node must run again
            elif spec is not None:
                values[name] = (cast_value(spec, value),)
        try:
            prints: list[Any] = []
            for arguments in calls_of(values, rules.input_is_list):
                given = node_class.fingerprint_of(self._environment, nested(rules, arguments))
                prints.append(await given if inspect.isawaitable(given) else given)
        except Exception as error:  # noqa: BLE001 - the node's own fingerprint
            log.warning("%s (node %s) cannot tell whether it changed: %s", node.class_type, node.id, error)
            return float("nan")
        return prints


def _with_fingerprints(prompt: Values, fingerprints: Values) -> Values:
    """Return the prompt as nodes see it and files keep it, without what is no plain data.

    `is_changed` has each node's fingerprint, as in ComfyUI.
    """
    noted = {node_id: value for node_id, value in fingerprints.items() if node_id in prompt and _is_plain(value)}
    if not noted:
        return prompt
    return {
        node_id: {**raw, "is_changed": noted[node_id]} if node_id in noted else raw for node_id, raw in prompt.items()
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


def _files_are_there(ui: Mapping[str, object], file_is_there: FileCheck) -> bool:
    return all(
        file_is_there(item)
        for items in ui.values()
        if isinstance(items, (list, tuple))
        for item in items
        if isinstance(item, Mapping) and "filename" in item
    )
