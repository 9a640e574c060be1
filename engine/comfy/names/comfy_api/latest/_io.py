"""`comfy_api.latest.io`: nodes that are declared by a schema, as of ComfyUI 0.30.0.

A `ComfyNode` is read as a class in ComfyUI's older form (`engine/nodes/legacy_node.py`): the members of that form
(`INPUT_TYPES`, `RETURN_TYPES`, `FUNCTION`, ...) are derived here from `define_schema()`. Its author's code never makes
an instance: `execute` and the rest are class methods, called on a sub-class that belongs to one node and carries its
hidden inputs.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from darkroom.contract.graph.spec import ValueDict, Values
from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.comfy.names.comfy_api.latest._io_dynamic import (
    Autogrow,
    DynamicCombo,
    DynamicInput,
    DynamicOutput,
    MatchType,
    declared_inputs,
)
from darkroom.engine.comfy.names.comfy_api.latest._io_inputs import (
    Boolean,
    Combo,
    ComfyTypeI,
    ComfyTypeIO,
    ControlAfterGenerate,
    Custom,
    Float,
    FolderType,
    Input,
    Int,
    MultiCombo,
    MultiType,
    NumberDisplay,
    Output,
    RemoteOptions,
    String,
    UploadType,
    Webcam,
    WidgetInput,
    comfytype,
)
from darkroom.engine.comfy.names.comfy_api.latest._io_types import *  # noqa: F403 - a table of names, all of them ComfyUI's
from darkroom.engine.nodes.base import ExecutionBlocker

__all__ = [
    "Autogrow", "Boolean", "Combo", "ComfyNode", "ComfyTypeI", "ComfyTypeIO", "ControlAfterGenerate", "Custom",
    "DynamicCombo", "DynamicInput", "DynamicOutput", "Float", "FolderType", "Hidden", "HiddenHolder", "Input", "Int",
    "MatchType", "MultiCombo", "MultiType", "NodeOutput", "NodeReplace", "NumberDisplay", "Output", "PriceBadge",
    "PriceBadgeDepends", "RemoteOptions", "Schema", "String", "UploadType", "Webcam", "WidgetInput", "comfytype",
]  # fmt: skip


class Hidden(str, Enum):  # noqa: UP042 - its values are formatted as ComfyUI's are
    """Inputs that the engine fills in."""

    unique_id = "UNIQUE_ID"
    prompt = "PROMPT"
    extra_pnginfo = "EXTRA_PNGINFO"
    dynprompt = "DYNPROMPT"
    auth_token_comfy_org = "AUTH_TOKEN_COMFY_ORG"
    api_key_comfy_org = "API_KEY_COMFY_ORG"
    comfy_usage_source = "COMFY_USAGE_SOURCE"


class HiddenHolder:
    """Hidden inputs of a call as attributes; None for those the schema does not declare."""

    def __init__(self, values: Values | None = None) -> None:
        self.__dict__.update(values or {})

    def __getattr__(self, name: str) -> object:
        return None


# --- schema and node ------------------------------------------------------------------------------


@dataclass
class PriceBadgeDepends:
    """Inputs that a price is computed from."""

    widgets: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    input_groups: list[str] = field(default_factory=list)

    def as_dict(self, schema_inputs: Sequence[Input]) -> ValueDict:
        """Return the names with the types of the widgets. Raises ValueError for a widget that the schema lacks."""
        types: dict[str, Any] = {}
        for item in schema_inputs:
            types[item.id] = item.get_io_type()
            types |= {f"{item.id}.{inner.id}": inner.get_io_type() for inner in item.get_all()[1:]}
        unknown = [name for name in self.widgets if name not in types]
        if unknown:
            raise ValueError(f"price_badge: unknown widgets {', '.join(unknown)}; expected some of {', '.join(types)}")
        widgets = [{"name": name, "type": types[name]} for name in self.widgets]
        return {"widgets": widgets, "inputs": self.inputs, "input_groups": self.input_groups}


@dataclass
class PriceBadge:
    """An expression by which clients show what a call of the node costs."""

    expr: str
    depends_on: PriceBadgeDepends = field(default_factory=PriceBadgeDepends)
    engine: str = "jsonata"

    def as_dict(self, schema_inputs: Sequence[Input]) -> ValueDict:
        return {"engine": self.engine, "depends_on": self.depends_on.as_dict(schema_inputs), "expr": self.expr}


@dataclass
class NodeReplace:
    """A class that takes the place of an older one in clients' pages."""

    new_node_id: str
    old_node_id: str
    old_widget_ids: list[str] | None = None
    input_mapping: list[ValueDict] | None = None
    output_mapping: list[ValueDict] | None = None

    def as_dict(self) -> ValueDict:
        return dict(vars(self))


@dataclass
class Schema:
    """Declaration of a node."""

    node_id: str
    display_name: str | None = None
    category: str = "sd"
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    description: str = ""
    search_aliases: list[str] = field(default_factory=list)
    is_input_list: bool = False
    is_output_node: bool = False
    is_deprecated: bool = False
    is_experimental: bool = False
    is_dev_only: bool = False
    is_api_node: bool = False
    price_badge: PriceBadge | None = None
    not_idempotent: bool = False
    enable_expand: bool = False
    accept_all_inputs: bool = False
    essentials_category: str | None = None
    has_intermediate_output: bool = False

    def validate(self) -> None:
        """Raise ValueError when two inputs, or two outputs, have the same id; raise what an input's own check raises.

        An output may have an input's: ComfyUI 0.3.64 refuses that, later versions, which packs are written for, do not.
        """
        inputs, outputs = self.inputs or (), self.outputs or ()
        for item in inputs:
            if not isinstance(item, Input):
                raise not_supported(f"comfy_api.latest.io.{type(item).__qualname__}")
        lists = [[item.id for item in items if item.id is not None] for items in (inputs, outputs)]
        twice = sorted({name for ids in lists for name in ids if ids.count(name) > 1})
        if twice:
            raise ValueError(f"{self.node_id}: ids must be unique, and these are not: {', '.join(twice)}")
        for item in inputs:
            item.validate()

    def later_info(self) -> ValueDict:
        """Return the fields of `/object_info` that only nodes by schema have."""
        matched = [
            item.template.template_id if isinstance(item, MatchType.Output) else None for item in self.outputs or ()
        ]
        return {
            "is_input_list": self.is_input_list,
            "output_matchtypes": matched if any(matched) else None,
            "has_intermediate_output": self.has_intermediate_output,
            "deprecated": self.is_deprecated,
            "experimental": self.is_experimental,
            "dev_only": self.is_dev_only,
            "price_badge": None if self.price_badge is None else self.price_badge.as_dict(self.inputs or ()),
            "search_aliases": self.search_aliases or None,
            "essentials_category": self.essentials_category,
        }

    def all_hidden(self) -> list[Hidden]:
        """Return the declared hidden inputs, and those that output nodes and API nodes always get."""
        wanted = list(self.hidden or ())
        if self.is_api_node:
            wanted += [Hidden.auth_token_comfy_org, Hidden.api_key_comfy_org, Hidden.comfy_usage_source]
        if self.is_output_node:
            wanted += [Hidden.prompt, Hidden.extra_pnginfo]
        return list(dict.fromkeys(wanted))


class NodeOutput:
    """Result of `execute`: the outputs in order, and what is shown, expanded or blocked."""

    def __init__(
        self, *args: Any, ui: Any = None, expand: dict[str, Any] | None = None, block_execution: str | None = None
    ) -> None:
        self.args = args
        self.ui = ui
        self.expand = expand
        self.block_execution = block_execution

    @property
    def result(self) -> tuple[Any, ...] | None:
        return self.args or None

    def __getitem__(self, index: int) -> object:
        return self.args[index]


class _FromSchema:
    """A member of the older form, read from the schema on each access, since lists of files change."""

    def __init__(self, read: Callable[[Schema], Any]) -> None:
        self._read = read

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self._read(owner.GET_SCHEMA())


class ComfyNode(ABC):
    """Base of nodes by schema: `define_schema` and `execute`, and optionally the three checks below them."""

    hidden: Any = HiddenHolder()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Set `validate_inputs` and `fingerprint_inputs`, where a class has them, under their older names."""
        super().__init_subclass__(**kwargs)
        for name, older in (("validate_inputs", "VALIDATE_INPUTS"), ("fingerprint_inputs", "IS_CHANGED")):
            own = getattr(cls, name, None)
            if own is not None:
                setattr(cls, older, own)

    @classmethod
    @abstractmethod
    def define_schema(cls) -> Schema:
        """Return the declaration."""

    @classmethod
    @abstractmethod
    def execute(cls, **kwargs: object) -> object:
        """Run one call.

        Return a `NodeOutput`, a tuple of outputs, a dict in the older form, or an `ExecutionBlocker`.
        """

    @classmethod
    def GET_SCHEMA(cls) -> Schema:
        schema = cls.define_schema()
        schema.validate()
        return schema

    @classmethod
    def INPUT_TYPES(cls) -> ValueDict:
        schema = cls.GET_SCHEMA()
        declared = declared_inputs(schema.inputs or ())
        hidden = schema.all_hidden()
        if hidden:
            declared["hidden"] = {item.name: (item.value,) for item in hidden}
        return declared

    @classmethod
    def LATER_INFO(cls) -> ValueDict:
        return cls.GET_SCHEMA().later_info()

    FUNCTION = "CALL"
    RETURN_TYPES = _FromSchema(lambda schema: tuple(item.get_io_type() for item in schema.outputs or ()))
    RETURN_NAMES = _FromSchema(
        lambda schema: tuple(item.display_name or item.get_io_type() for item in schema.outputs or ())
    )
    OUTPUT_IS_LIST = _FromSchema(lambda schema: tuple(item.is_output_list for item in schema.outputs or ()))
    OUTPUT_TOOLTIPS = _FromSchema(lambda schema: tuple(item.tooltip for item in schema.outputs or ()))
    DESCRIPTION = _FromSchema(lambda schema: schema.description)
    CATEGORY = _FromSchema(lambda schema: schema.category)
    EXPERIMENTAL = _FromSchema(lambda schema: schema.is_experimental)
    DEPRECATED = _FromSchema(lambda schema: schema.is_deprecated)
    API_NODE = _FromSchema(lambda schema: schema.is_api_node)
    OUTPUT_NODE = _FromSchema(lambda schema: schema.is_output_node)
    INPUT_IS_LIST = _FromSchema(lambda schema: schema.is_input_list)
    NOT_IDEMPOTENT = _FromSchema(lambda schema: schema.not_idempotent)
    ACCEPT_ALL_INPUTS = _FromSchema(lambda schema: schema.accept_all_inputs)

    def CALL(self, **inputs: object) -> object:
        """Run one call in the older form. The class is a sub-class with this call's hidden inputs."""
        schema, own = self._own(inputs)
        outcome = own.execute(**inputs)
        if inspect.isawaitable(outcome):
            return _later(outcome, schema)
        return older_form(outcome, schema)

    def LAZY_STATUS(self, **inputs: object) -> object:
        """Return the names of the lazy inputs that a call needs, as the class's `check_lazy_status` tells them."""
        _, own = self._own(inputs)
        return own.check_lazy_status(**inputs) if hasattr(own, "check_lazy_status") else ()

    def _own(self, inputs: ValueDict) -> tuple[Schema, Any]:
        """Return the schema and the sub-class for one call, which takes the hidden ones out of its inputs."""
        kind: Any = type(self)
        schema: Schema = kind.GET_SCHEMA()
        hidden = {item.name: inputs.pop(item.name, None) for item in schema.all_hidden()}
        members = {"hidden": HiddenHolder(hidden), "__module__": kind.__module__}
        return schema, type(kind.__name__, (kind,), members)


async def _later(outcome: Any, schema: Schema) -> Any:
    return older_form(await outcome, schema)


def older_form(outcome: Any, schema: Schema) -> Any:
    """Convert the result of `execute` for `engine/nodes/legacy_node.py`. Raises TypeError for any other type."""
    if isinstance(outcome, ExecutionBlocker):
        return outcome
    if outcome is None:
        outcome = NodeOutput()
    if isinstance(outcome, (tuple, dict)):
        return outcome
    if not isinstance(outcome, NodeOutput):
        raise TypeError(f"{schema.node_id} gave a {type(outcome).__name__}, which is no output of a node")
    if outcome.expand is not None and not schema.enable_expand:
        raise TypeError(f"{schema.node_id} expands, which its schema does not allow (enable_expand)")
    if outcome.block_execution is not None:
        return ExecutionBlocker(outcome.block_execution)
    shown: dict[str, Any] = {}
    if outcome.result is not None:
        shown["result"] = outcome.result
    if outcome.ui is not None:
        shown["ui"] = outcome.ui if isinstance(outcome.ui, dict) else outcome.ui.as_dict()
    if outcome.expand is not None:
        shown["expand"] = outcome.expand
    return shown
