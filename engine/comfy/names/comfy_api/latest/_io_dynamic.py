"""Inputs that depend on a node's other inputs: growing groups, choices that bring inputs, types that must match.

What a prompt may give for them is read from their declaration by `contract/graph/dynamic_inputs.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from darkroom.contract.graph.dynamic_inputs import MAX_GROWN
from darkroom.contract.graph.spec import DYNAMIC_COMBO, GROWING, MATCHED, ValueDict
from darkroom.engine.comfy.names.comfy_api.latest._io_inputs import (
    BASE,
    BASE_END,
    ComfyTypeI,
    ComfyTypeIO,
    Input,
    Output,
    WidgetInput,
    comfytype,
    parameters,
)
from darkroom.engine.comfy.names.comfy_api.latest._io_types import AnyType


def declared_inputs(inputs: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return inputs as `INPUT_TYPES` lists them. Raises AttributeError for what is no input."""
    declared: dict[str, dict[str, Any]] = {"required": {}}
    for item in inputs:
        section = declared.setdefault("optional" if item.optional else "required", {})
        section[item.id] = (item.get_io_type(), item.as_dict())
    return declared


class DynamicInput(Input):
    """An input that stands for others."""

    required = 1
    raw_link = None
    advanced = None


class DynamicOutput(Output):
    """An output that stands for others."""


class MatchTemplate:
    """A type that all inputs and outputs with this template share. `allowed_types` are those it may be."""

    def __init__(self, template_id: str, allowed_types: Any = AnyType) -> None:
        self.template_id = template_id
        types = list(allowed_types) if isinstance(allowed_types, Iterable) else [allowed_types]
        for kind in types:
            if not issubclass(kind if isinstance(kind, type) else type(kind), ComfyTypeI):
                raise ValueError(f"allowed_types: got {kind!r}, expected types of comfy_api.latest.io")
        self.allowed_types = types

    def as_dict(self) -> dict[str, str]:
        types = ",".join(str(kind.io_type) for kind in self.allowed_types)
        return {"template_id": self.template_id, "allowed_types": types}


class _MatchInput(Input):
    takes = parameters("template", *BASE, *BASE_END)
    required = 1
    template: MatchTemplate

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "template": self.template.as_dict()}


class _MatchOutput(Output):
    def __init__(
        self,
        template: MatchTemplate,
        id: str | None = None,
        display_name: str | None = None,
        tooltip: str | None = None,
        is_output_list: bool = False,
    ) -> None:
        super().__init__(id, display_name or id or "MATCHTYPE", tooltip, is_output_list)
        self.template = template


@comfytype(io_type=MATCHED)
class MatchType(ComfyTypeIO):
    Template = MatchTemplate
    Input = _MatchInput
    Output = _MatchOutput


class _GrowingTemplate:
    """The input that a group repeats."""

    def __init__(self, input: Input, names: Sequence[str], min: int) -> None:
        if isinstance(input, DynamicInput) or min < 0:
            raise ValueError(f"a growing group repeats one plain input, 0 times or more; got {input!r}, min={min}")
        self.input = copy.copy(input)
        if isinstance(self.input, WidgetInput):
            self.input.force_input = True
        self.names = list(names)
        self.min = min
        self.cached_inputs = {name: self._named(name) for name in self.names}

    def _named(self, name: str) -> Input:
        made = copy.copy(self.input)
        made.id = name
        return made

    def get_all(self) -> list[Input]:
        return list(self.cached_inputs.values())

    def as_dict(self) -> ValueDict:
        return {"input": declared_inputs([self.input])}

    def validate(self) -> None:
        self.input.validate()


class TemplatePrefix(_GrowingTemplate):
    """Names made of a prefix and numbers from 0."""

    def __init__(self, input: Input, prefix: str, min: int = 1, max: int = 10) -> None:
        if not 1 <= max <= MAX_GROWN:
            raise ValueError(f"max: got {max}, expected 1 to {MAX_GROWN}")
        super().__init__(input, [f"{prefix}{index}" for index in range(max)], min)
        self.prefix = prefix
        self.max = max

    def as_dict(self) -> ValueDict:
        return {**super().as_dict(), "prefix": self.prefix, "min": self.min, "max": self.max}


class TemplateNames(_GrowingTemplate):
    """Listed names."""

    def __init__(self, input: Input, names: Sequence[str], min: int = 1) -> None:
        super().__init__(input, names[:MAX_GROWN], min)

    def as_dict(self) -> ValueDict:
        return {**super().as_dict(), "names": self.names, "min": self.min}


class _GrowingInput(DynamicInput):
    takes = parameters("template", *BASE, "extra_dict")
    template: _GrowingTemplate

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "template": self.template.as_dict()}

    def get_all(self) -> list[Input]:
        return [self, *self.template.get_all()]

    def validate(self) -> None:
        self.template.validate()


@comfytype(io_type=GROWING)
class Autogrow(ComfyTypeI):
    """A group of inputs that grows with what is linked. The node receives a mapping by name."""

    Type = dict[str, Any]
    _MaxNames: ClassVar[int] = MAX_GROWN
    TemplatePrefix = TemplatePrefix
    TemplateNames = TemplateNames
    Input = _GrowingInput


class Option:
    """A choice of a dynamic combo, with the inputs that it brings."""

    def __init__(self, key: str, inputs: Sequence[Input]) -> None:
        self.key = key
        self.inputs = list(inputs)

    def as_dict(self) -> dict[str, object]:
        return {"key": self.key, "inputs": declared_inputs(self.inputs)}


class _DynamicComboInput(DynamicInput):
    takes = parameters("options", *BASE, "extra_dict")
    options: Sequence[Option]

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "options": [option.as_dict() for option in self.options]}

    def get_all(self) -> list[Input]:
        return [self, *(item for option in self.options for item in option.inputs)]

    def validate(self) -> None:
        for option in self.options:
            for item in option.inputs:
                item.validate()


@comfytype(io_type=DYNAMIC_COMBO)
class DynamicCombo(ComfyTypeI):
    """A choice that brings further inputs. The node receives a mapping of them and of the choice."""

    Type = Mapping[str, Any]
    Option = Option
    Input = _DynamicComboInput
