"""Inputs of a node by name: a parameter of its function, and those that other inputs bring or repeat."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from darkroom.contract.graph.spec import DYNAMIC_COMBO, GROWING, InputSpec, Section, ValueDict
from darkroom.engine.nodes.base import NodeEnvironment
from darkroom.engine.nodes.markers import Hidden, Socket
from darkroom.engine.nodes.widgets import InputFile, OpenChoice, OpenCombo, Widget, WordOrInt


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    section: Section
    marker: Socket | Widget | Hidden
    default: Any = inspect.Parameter.empty
    is_lazy: bool = False
    is_streamed: bool = False
    is_unfollowed: bool = False
    is_advanced: bool = False

    def spec(self, environment: NodeEnvironment) -> InputSpec:
        advanced = {"advanced": True} if self.is_advanced else {}
        if isinstance(self.marker, (Socket, Hidden)):
            lazy = {"lazy": True} if self.is_lazy else {}
            shown = self.marker.options() if isinstance(self.marker, Socket) else {}
            options = {**shown, **lazy, **advanced}
            return InputSpec(self.name, self.marker.type, options, self.section, is_unfollowed=self.is_unfollowed)
        options = {**self.marker.options_in(environment), **advanced}
        if self.default is not inspect.Parameter.empty and self.default is not None:
            options = {"default": self.default, **options}
        is_open = isinstance(self.marker, InputFile | OpenCombo | OpenChoice | WordOrInt)  # files are checked by name
        return InputSpec(
            self.name,
            self.marker.type_in(environment),
            options,
            self.section,
            is_open,
            is_unfollowed=self.is_unfollowed,
        )


@dataclass(frozen=True, slots=True)
class Field:
    """An input within a dynamic one."""

    name: str
    marker: Socket | Widget
    default: Any = inspect.Parameter.empty
    is_optional: bool = False

    def as_json(self, environment: NodeEnvironment) -> list[object]:
        section: Section = "optional" if self.is_optional else "required"
        return Parameter(self.name, section, self.marker, self.default).spec(environment).as_json()


@dataclass(frozen=True)
class DynamicChoice(Widget):
    """A choice that brings further inputs. The node receives a mapping of them and, under its own name, the choice."""

    fields: tuple[tuple[str, tuple[Field, ...]], ...] = ()  # by choice

    def type_in(self, environment: NodeEnvironment) -> str:
        return DYNAMIC_COMBO

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        offered = [{"key": key, "inputs": _sections(fields, environment)} for key, fields in self.fields]
        return {"options": offered, **self.extra}


@dataclass(frozen=True)
class Growing(Widget):
    """An input that the prompt repeats: under `names`, or as `prefix` with numbers from 0, `max` of them at most.

    The node receives a mapping of those that the prompt has.
    """

    item: Field = field(kw_only=True)
    names: tuple[str, ...] = ()
    prefix: str = ""
    min: int = 1
    max: int = 10

    def type_in(self, environment: NodeEnvironment) -> str:
        return GROWING

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        repeated = _sections((self.item,), environment)
        told: ValueDict = {"names": list(self.names)} if self.names else {"prefix": self.prefix, "max": self.max}
        return {"template": {"input": repeated, **told, "min": self.min}, **self.extra}


def _sections(fields: Sequence[Field], environment: NodeEnvironment) -> dict[str, dict[str, list[object]]]:
    """Return inputs as `/object_info` lists them."""
    sections: dict[str, dict[str, list[object]]] = {"required": {}}
    for item in fields:
        section = sections.setdefault("optional" if item.is_optional else "required", {})
        section[item.name] = item.as_json(environment)
    return sections
