"""Conversion of a workflow that ComfyUI's page saved into a prompt in API format. Pure.

The page itself makes a prompt of what it shows; this does so from the file and the engine's node declarations. What a
file cannot tell without a pack's script is refused, every such node at once, but for nodes that a switch leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from darkroom.contract.graph.facts import Facts
from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.workflows.declarations import Declarations
from darkroom.worker.prompts.workflows.expansion import ELEMENT_BYTES, LONG_LENGTH, Expansion
from darkroom.worker.prompts.workflows.front_end_nodes import RECORDED, SCRIPTED, VIRTUAL
from darkroom.worker.prompts.workflows.link_sources import Constant, LinkSources, Source
from darkroom.worker.prompts.workflows.page_graph import BYPASS, NEVER, PageNode
from darkroom.worker.prompts.workflows.page_texts import MAX_NAME_LENGTH, TextRefused, choose_alternatives, fill_name
from darkroom.worker.prompts.workflows.scopes import Scope, Unfolding
from darkroom.worker.prompts.workflows.widgets import ScriptedWidgets, read_values

NAMED_FILE: Final = "filename_prefix"


def to_prompt(
    document: JsonObject, object_info: JsonObject, choose: Callable[[int], int], max_nodes: int = 0
) -> dict[str, Any]:
    """Return the prompt of a workflow as the page saves it.

    `choose(n)` returns a number below n, for prompts with alternatives. `max_nodes` bounds the nodes of the unfolded
    sub-graphs; 0: no limit. Raises RequestRejected with a problem for each node that cannot be converted.
    """
    expansion = Expansion(max_nodes)
    page = Unfolding(document, object_info, expansion).unfold()
    return _Conversion(page, object_info, choose, expansion).run()


@dataclass
class _Conversion:
    page: Scope
    object_info: JsonObject
    choose: Callable[[int], int]
    expansion: Expansion
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.declarations, self.facts = Declarations(self.object_info), Facts(self.object_info)
        self.sources = LinkSources(self.expansion)

    def run(self) -> dict[str, Any]:
        prompt: dict[str, Any] = {}
        nodes: dict[str, PageNode] = {}
        for scope, node in self.page.all_nodes():
            is_off = scope.mode_of(node) in (NEVER, BYPASS)
            if not is_off and node.id not in scope.children and node.type not in VIRTUAL:
                converted = self._node(scope, node)
                if converted is not None:
                    node_id = scope.id_of(node)
                    self._count(node_id, converted["inputs"])
                    prompt[node_id], nodes[node_id] = converted, node
        for entry in prompt.values():
            inputs = entry["inputs"]
            entry["inputs"] = {name: _plain(value) for name, value in inputs.items() if _is_there(value, prompt)}
        self._fill_names(prompt, nodes)
        self._raise_problems(prompt)
        return prompt

    def _raise_problems(self, prompt: JsonObject) -> None:
        """Raise RequestRejected with the problems of nodes that may run, if there are any."""
        if self.problems:
            left_out = PromptGraph(prompt, self.object_info).left_out
            problems = [problem for problem in self.problems if problem.node_id not in left_out]
            if problems:
                raise RequestRejected(problems)

    def _count(self, node_id: str, inputs: Mapping[str, Any]) -> None:
        """Count what a node adds to the prompt. Raises RequestRejected at a limit."""
        self.expansion.add_elements(1 + len(inputs))
        num_bytes = len(node_id)
        for name, value in inputs.items():
            num_bytes += len(name) + ELEMENT_BYTES
            if isinstance(value, Source):
                num_bytes += len(value.node_id)
            elif isinstance(value, list | dict) or (isinstance(value, str) and len(value) > LONG_LENGTH):
                self.expansion.add(value)
            elif isinstance(value, str):
                num_bytes += len(value)
        self.expansion.add_bytes(num_bytes)

    def _node(self, scope: Scope, node: PageNode) -> dict[str, Any] | None:
        """Return a node in API format, its links as Source; None for one without effect.

        One that cannot be converted has its links alone, and its problem among those of the conversion.
        """
        spec = self.declarations.find(node.type)
        script = SCRIPTED.get(node.type) or (RECORDED if self.facts.of(node.type).recorded else None)
        if script is not None:
            return self._refused(scope, node, f"needs {script}", "needs_script")
        if spec is None:
            is_shown_only = not _is_linked(node)
            return None if is_shown_only else self._refused(scope, node, "unknown node class", "unknown_class")
        try:
            inputs = read_values(spec, node, self.facts.of(node.type).page_values)
        except ScriptedWidgets:
            words = "has widgets that only its pack's script reads"
            return self._refused(scope, node, words, "needs_script")
        inputs |= {name: scope.settings[node.id, name] for name in inputs if (node.id, name) in scope.settings}
        promoted = self._link(scope, node, inputs)
        for item in spec.inputs:
            text = inputs.get(item.name)
            if isinstance(text, str) and item.options.get("dynamicPrompts") and item.name not in promoted:
                inputs[item.name] = self._chosen(scope, node, item.name, text)
        return _entry(node, inputs)

    def _link(self, scope: Scope, node: PageNode, inputs: dict[str, object]) -> set[str]:
        """Set the inputs that are linked; return those whose widget the use of a sub-graph shows in their place.

        Of such a widget the page takes the text as it is, without choosing among alternatives.
        """
        promoted: set[str] = set()
        for index, slot in enumerate(node.inputs):
            source = self.sources.of(scope, node, index)
            if scope.is_promoted(slot):
                promoted.add(slot.name)
            if isinstance(source, Constant):
                inputs[slot.name] = source.value
            elif source is not None:
                inputs[slot.name] = source
        return promoted

    def _chosen(self, scope: Scope, node: PageNode, name: str, text: str) -> str:
        """Return a prompt with one of each set of alternatives."""
        self.expansion.add_new_bytes(len(text))
        try:
            return choose_alternatives(text, self.choose)
        except TextRefused as refused:
            self.problems.append(Problem(str(refused), name, scope.id_of(node), node.type, "too_many_alternatives"))
            return ""

    def _fill_names(self, prompt: dict[str, Any], nodes: Mapping[str, PageNode]) -> None:
        """Fill the marks in the names of saved files with other nodes' values. `nodes` are the prompt's, by id."""
        named = {node_id: entry["inputs"].get(NAMED_FILE) for node_id, entry in prompt.items()}
        marked = {node_id: name for node_id, name in named.items() if isinstance(name, str) and "%" in name}
        if not marked:
            return
        names = {nodes[node_id].title: entry["inputs"] for node_id, entry in reversed(prompt.items())}
        names |= {nodes[node_id].search_name: entry["inputs"] for node_id, entry in reversed(prompt.items())}
        for node_id, name in marked.items():
            try:
                prompt[node_id]["inputs"][NAMED_FILE] = fill_name(name, names)
            except TextRefused as refused:
                allowed = {"maximum_length": MAX_NAME_LENGTH}
                kind = nodes[node_id].type
                self.problems.append(
                    Problem(str(refused), NAMED_FILE, node_id, kind, "invalid_filename_prefix", allowed)
                )

    def _refused(self, scope: Scope, node: PageNode, words: str, kind: str) -> dict[str, object]:
        """Note the problem of a node that cannot be converted; return its links."""
        allowed = "a prompt in API format, which the page exports" if kind == "needs_script" else None
        field = "input.workflow_json"
        self.problems.append(Problem(f"{node.type}: {words}", field, scope.id_of(node), node.type, kind, allowed))
        inputs: dict[str, Any] = {}
        self._link(scope, node, inputs)
        return _entry(node, inputs)


def _entry(node: PageNode, inputs: dict[str, object]) -> dict[str, object]:
    return {"class_type": node.type, "inputs": inputs, "_meta": {"title": node.title}}


def _is_linked(node: PageNode) -> bool:
    """Return True for a node with a link: one of an unknown class without any is a note, a label or a button."""
    return any(slot.link is not None for slot in (*node.inputs, *node.outputs))


def _is_there(value: object, prompt: Mapping[str, Any]) -> bool:
    """Return False for a link to a node that is muted, or that exists on the page only."""
    return not isinstance(value, Source) or value.node_id in prompt


def _plain(value: object) -> object:
    """Return a value as a prompt has it: a list that is no link within an object."""
    if isinstance(value, Source):
        return [value.node_id, value.slot]
    return {"__value__": value} if isinstance(value, list) else value
