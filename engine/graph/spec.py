"""What a node declares: the inputs it takes and the outputs it gives. Plain data, made by `engine/nodes/base.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Section = Literal["required", "optional", "hidden"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input.

    `type` is ComfyUI's type name (`"INT"`, `"MODEL"`, `"*"`, `"A,B"`), or the list of values to choose from. `options`
    is ComfyUI's option object as clients see it (`default`, `min`, `lazy`, ...).
    """

    name: str
    type: str | Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    section: Section = "required"

    @property
    def choices(self) -> Sequence[Any] | None:
        """The values to choose from, in either of ComfyUI's notations; None when the input is no choice."""
        if not isinstance(self.type, str):
            return self.type
        return self.options.get("options") if self.type == "COMBO" else None

    @property
    def is_choice(self) -> bool:
        return self.choices is not None

    @property
    def is_lazy(self) -> bool:
        return bool(self.options.get("lazy"))

    @property
    def takes_raw_link(self) -> bool:
        return bool(self.options.get("rawLink"))

    def as_json(self) -> list[Any]:
        """The two-element form of `/object_info` and of `input_config` in error bodies."""
        return [self.type if isinstance(self.type, str) else list(self.type), dict(self.options)]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    type: str | Sequence[Any]
    name: str
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Everything a client or the scheduler may know of a node class without calling it."""

    class_type: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    display_name: str | None
    category: str
    description: str = ""
    python_module: str = "nodes"
    is_output: bool = False
    input_is_list: bool = False
    is_idempotent: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)  # deprecated, experimental, api_node, output_tooltips

    def input(self, name: str) -> InputSpec | None:
        """The declared input of that name, hidden ones included."""
        return next((item for item in self.inputs if item.name == name), None)

    def section(self, section: Section) -> tuple[InputSpec, ...]:
        return tuple(item for item in self.inputs if item.section == section)
