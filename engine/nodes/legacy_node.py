"""A class in ComfyUI's form (`INPUT_TYPES`, `RETURN_TYPES`, `FUNCTION`, ...) as a `NodeClass`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.spec import (
    InputCheck,
    InputSpec,
    NodeRules,
    NodeSpec,
    OutputSpec,
    Section,
    Values,
    rules_of,
)
from darkroom.engine.models.files.file_names import FileNames
from darkroom.engine.nodes.base import NodeClass, NodeContext, NodeEnvironment, Returned
from darkroom.engine.nodes.running_call import call_of

_SECTIONS: tuple[Section, ...] = ("required", "optional", "hidden")
_OPEN: tuple[Section, ...] = ("optional", "hidden")  # sections that may take names beyond those they list


class ClassNode(NodeClass):
    """A node class in ComfyUI's form. `kind` is the class as its pack wrote it, unchanged."""

    def __init__(
        self, class_type: str, kind: type, *, display_name: str | None = None, python_module: str | None = None
    ) -> None:
        self.class_type = class_type
        self.kind: Any = kind
        self._display_name = class_type if display_name is None else display_name
        self._python_module: str = python_module or str(getattr(kind, "RELATIVE_PYTHON_MODULE", "nodes"))

    def spec(self, environment: NodeEnvironment) -> NodeSpec:
        return self._spec(self.kind.INPUT_TYPES())

    def _spec(self, declared: Mapping[str, object]) -> NodeSpec:
        kind, inputs = self.kind, _inputs(declared)
        return NodeSpec(
            class_type=self.class_type,
            inputs=inputs,
            outputs=_outputs(kind),
            display_name=self._display_name,
            category=getattr(kind, "CATEGORY", "sd"),
            description=getattr(kind, "DESCRIPTION", ""),
            python_module=self._python_module,
            is_output=getattr(kind, "OUTPUT_NODE", False) is True,
            input_is_list=bool(getattr(kind, "INPUT_IS_LIST", False)),
            is_idempotent=not getattr(kind, "NOT_IDEMPOTENT", False),
            extra=_extra(kind),
            facts=_facts(inputs),
        )

    def rules(self, environment: NodeEnvironment) -> NodeRules:
        declared = self.kind.INPUT_TYPES()  # once: it may list folders
        rules = rules_of(
            self._spec(declared),
            is_async=inspect.iscoroutinefunction(getattr(self.kind, self.kind.FUNCTION, None)),
            has_fingerprint=hasattr(self.kind, "IS_CHANGED"),
            check=self._input_check(),
            undeclared=self._undeclared(),
            takes_any_value=bool(getattr(self.kind, "ACCEPT_ALL_INPUTS", False)),
        )
        # A pack's own kind of dict may take names that it does not list.
        open_sections = {name: declared[name] for name in _OPEN if type(declared.get(name, {})) is not dict}
        return replace(rules, inputs=OpenInputs(rules.inputs, open_sections)) if open_sections else rules

    def _undeclared(self) -> frozenset[str] | None:
        """Return the names that the class's function takes besides the declared ones, or None if it takes any name."""
        try:
            parameters = inspect.signature(getattr(self.kind, self.kind.FUNCTION)).parameters.values()
        except (AttributeError, TypeError, ValueError):
            return None  # no function, or one that does not say what it takes: the call shows it
        if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters):
            return None
        return frozenset(item.name for item in parameters)

    def instance(self) -> object:
        return self.kind()

    def fingerprint_of(self, environment: NodeEnvironment, inputs: Mapping[str, object]) -> object:
        return self.kind.IS_CHANGED(**inputs)

    def missing_inputs(self, instance: object, inputs: Mapping[str, object]) -> object:
        asks = getattr(instance, "LAZY_STATUS", None) or getattr(instance, "check_lazy_status", None)
        return () if asks is None else asks(**inputs)

    def call(self, instance: Any, context: NodeContext, inputs: dict[str, Any]) -> Any:
        with call_of(context):
            outcome = getattr(instance, self.kind.FUNCTION)(**inputs)
        return _awaited(outcome, context) if inspect.isawaitable(outcome) else outcome

    def returned(self, outcome: object) -> Returned:
        if isinstance(outcome, dict):
            return Returned(outcome.get("result"), outcome.get("ui"), outcome.get("expand"))
        if outcome is None and not self.kind.RETURN_TYPES:
            return Returned(None)
        return Returned(outcome)

    def _input_check(self) -> InputCheck | None:
        own: Any = getattr(self.kind, "VALIDATE_INPUTS", None)
        if own is None:
            return None
        declared = inspect.getfullargspec(own)
        takes_lists = bool(getattr(self.kind, "INPUT_IS_LIST", False))

        def function(**inputs: Any) -> Any:
            verdict = own(**inputs)
            return wait_for(verdict) if inspect.isawaitable(verdict) else verdict

        return InputCheck(function, frozenset(declared.args), declared.varkw is not None, takes_lists=takes_lists)


async def _awaited(outcome: Awaitable[object], context: NodeContext) -> object:
    """Await an outcome with the call registered as the running one, since awaiting happens in a task of its own."""
    with call_of(context):
        return await outcome


def wait_for(awaitable: Awaitable[Any]) -> Any:
    """Return the value of an awaitable from synchronous code, by running it on a loop and thread of its own."""

    async def main() -> object:
        return await awaitable

    run: Coroutine[Any, Any, Any] = main()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run).result()


class OpenInputs(dict[str, InputSpec]):
    """Inputs of a node of which a section accepts names beyond those it lists."""

    def __init__(self, listed: Mapping[str, InputSpec], open_sections: Mapping[Section, Mapping[str, object]]) -> None:
        super().__init__(listed)
        self._open_sections = open_sections

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            for section, names in self._open_sections.items():
                if name in names:
                    return _input(name, names[name], section)
        return super().get(name, default)


def _inputs(declared: Values) -> tuple[InputSpec, ...]:
    found: list[InputSpec] = []
    for section in _SECTIONS:
        for name, item in declared.get(section, {}).items():
            found.append(_input(name, item, section))
    return tuple(found)


def _input(name: str, item: Any, section: Section) -> InputSpec:
    if isinstance(item, str):  # a hidden input names only what it wants
        return InputSpec(name, item, {}, section)
    options = item[1] if len(item) > 1 and isinstance(item[1], Mapping) else {}
    return InputSpec(name, item[0], options, section, is_listed=section == "hidden" or len(item) > 1)


def _facts(inputs: Iterable[InputSpec]) -> NodeFacts:
    """Return the folders of the inputs whose choices are the files of one, as `folder_paths` lists them."""
    offered = {item.name: item.choices for item in inputs}
    models = {name: choices.kind for name, choices in offered.items() if isinstance(choices, FileNames)}
    return NodeFacts(models=models) if models else NO_FACTS


def _outputs(kind: Any) -> tuple[OutputSpec, ...]:
    types = kind.RETURN_TYPES
    names = getattr(kind, "RETURN_NAMES", types)
    lists = getattr(kind, "OUTPUT_IS_LIST", (False,) * len(types))
    return tuple(
        OutputSpec(
            output,
            names[index] if index < len(names) else output,
            bool(lists[index]) if index < len(lists) else False,
        )
        for index, output in enumerate(types)
    )


def _extra(kind: object) -> dict[str, object]:
    extra: dict[str, Any] = {}
    if hasattr(kind, "OUTPUT_TOOLTIPS"):
        extra["output_tooltips"] = list(kind.OUTPUT_TOOLTIPS)
    if getattr(kind, "DEPRECATED", False):
        extra["deprecated"] = True
    if getattr(kind, "EXPERIMENTAL", False):
        extra["experimental"] = True
    if hasattr(kind, "API_NODE"):
        extra["api_node"] = kind.API_NODE
    return extra | (kind.LATER_INFO() if hasattr(kind, "LATER_INFO") else {})
