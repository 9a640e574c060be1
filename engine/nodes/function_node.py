"""FunctionNode: a built-in node, one function with the declaration that `declaration.py` reads from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.spec import InputCheck, NodeRules, NodeSpec, OutputSpec, rules_of
from darkroom.engine.nodes.base import (
    ExecutionBlocker,
    Expanded,
    NodeClass,
    NodeContext,
    NodeEnvironment,
    NodeOutput,
    Returned,
)
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.parameters import Parameter
from darkroom.engine.nodes.widgets import InputFile, ModelFile, PromptText, Widget, WordOrInt

LOADED_TYPES = frozenset({"MODEL", "CLIP", "VAE", "CLIP_VISION"})  # of which a file may lack one


@dataclass(frozen=True)
class FunctionNode(NodeClass):
    """A built-in node: a function and the declaration read from its signature."""

    class_type: str
    function: Callable[..., Any]
    display_name: str | None
    category: str
    is_output: bool
    python_module: str
    is_idempotent: bool
    extra: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    outputs: tuple[OutputSpec, ...]
    fingerprint: Callable[..., Any] | None = None  # (environment, **inputs) -> hashable; what the inputs do not show
    check: Callable[..., str | None] | None = None  # (environment, **inputs) -> complaint
    needs: Callable[..., Sequence[str]] | None = None  # (**inputs) -> names of lazy inputs
    input_is_list: bool = False
    takes_any_value: bool = False
    facts: NodeFacts = NO_FACTS

    def spec(self, environment: NodeEnvironment) -> NodeSpec:
        return self._spec(environment, self._facts_in(environment))

    def _spec(self, environment: NodeEnvironment, facts: NodeFacts) -> NodeSpec:
        return NodeSpec(
            class_type=self.class_type,
            inputs=tuple(parameter.spec(environment) for parameter in self.parameters),
            outputs=self.outputs,
            display_name=self.display_name,
            category=self.category,
            description=inspect.getdoc(self.function) or "",
            python_module=self.python_module,
            is_output=self.is_output,
            input_is_list=self.input_is_list,
            is_idempotent=self.is_idempotent,
            extra=self.extra,
            facts=facts,
        )

    def _facts_in(self, environment: NodeEnvironment) -> NodeFacts:
        if not self.facts.sampler_input:
            return self.facts
        named = next(item for item in self.parameters if item.name == self.facts.sampler_input)
        offered = named.marker.samplers_in(environment) if isinstance(named.marker, Widget) else {}
        return replace(self.facts, samplers=offered)

    def declared_facts(self, environment: NodeEnvironment) -> NodeFacts:
        return self.facts

    def rules(self, environment: NodeEnvironment) -> NodeRules:
        return rules_of(
            self._spec(environment, self.facts),  # a check needs no table of samplers
            is_async=inspect.iscoroutinefunction(self.function),
            has_fingerprint=self.fingerprint is not None,
            check=self._input_check(environment),
            takes_any_value=self.takes_any_value,
            undeclared=None if self.takes_any_value else frozenset(),
            streamed=frozenset(item.name for item in self.parameters if item.is_streamed),
        )

    def instance(self) -> None:
        return None

    def fingerprint_of(self, environment: NodeEnvironment, inputs: Mapping[str, object]) -> object:
        assert self.fingerprint is not None
        return self.fingerprint(environment, **_accepted(self.fingerprint, inputs))

    def missing_inputs(self, instance: object, inputs: Mapping[str, object]) -> Sequence[str]:
        return () if self.needs is None else self.needs(**_accepted(self.needs, inputs))

    def call(self, instance: Any, context: NodeContext, inputs: dict[str, Any]) -> Any:
        self._refuse_absent_models(inputs)
        return self.function(context, **inputs)

    def _refuse_absent_models(self, inputs: Mapping[str, object]) -> None:
        """Raise ValueError for a required model that its loader did not find in the file."""
        for item in self.parameters:
            marker = item.marker
            if not isinstance(marker, Socket) or marker.type not in LOADED_TYPES or item.section != "required":
                continue
            if inputs.get(item.name, marker) is None:
                raise ValueError(
                    f"{item.name}: the file that it was loaded from has none; got None, expected a {marker.type} from "
                    "a whole checkpoint or a loader of its own"
                )

    def returned(self, outcome: object) -> Returned:
        if isinstance(outcome, NodeOutput):
            return Returned(outcome.result if self.outputs else None, outcome.ui)
        if isinstance(outcome, Expanded):
            return Returned(outcome.result, outcome.ui, outcome.graph)
        if isinstance(outcome, ExecutionBlocker) or (outcome is None and not self.outputs):
            return Returned(outcome)
        return Returned(outcome if isinstance(outcome, tuple) else (outcome,))

    def __call__(self, context: NodeContext, **inputs: Any) -> Any:
        return self.function(context, **inputs)

    def _input_check(self, environment: NodeEnvironment) -> InputCheck | None:
        """Return a check of the inputs, or None if nothing is to be checked.

        It covers the node's own check, the existence of files named in the input folder, the headers of model files,
        and the syntax of prompt texts. A fault begins with the input's name.
        """
        own = self.check
        names = frozenset() if own is None else _named_inputs(own)[0]
        needed = names & {item.name for item in self.parameters if item.section == "required"}
        unchecked = {
            item.name: item.marker
            for item in self.parameters
            if isinstance(item.marker, InputFile | ModelFile | PromptText | WordOrInt) and item.name not in names
        }
        if own is None and not unchecked:
            return None

        def function(**inputs: object) -> bool | str:
            for name, marker in unchecked.items():
                complaint = marker.complaint(environment, inputs[name]) if name in inputs else None
                if complaint is not None:
                    return f"{name}: {complaint}"
            known = {name: value for name, value in inputs.items() if value is not None}  # None: a link brings it
            if own is None or not needed <= known.keys():
                return True
            complaint = own(environment, **_accepted(own, known))
            if complaint is None or complaint.partition(": ")[0] in names:
                return complaint or True
            return f"{next(name for name in inputs if name in names)}: {complaint}"

        takes = names & {item.name for item in self.parameters} | unchecked.keys()
        return InputCheck(function, takes, comes_last=True)


def _named_inputs(function: Callable[..., object]) -> tuple[frozenset[str], bool]:
    """Return the names of a function's parameters, and True if it also takes any other name."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters)
    return frozenset(item.name for item in parameters if item.kind is not inspect.Parameter.VAR_KEYWORD), takes_all


def _accepted(function: Callable[..., object], inputs: Mapping[str, object]) -> dict[str, object]:
    names, takes_all = _named_inputs(function)
    return {name: value for name, value in inputs.items() if takes_all or name in names}
