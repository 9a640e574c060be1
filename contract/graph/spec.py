"""Declaration of a node: its inputs and outputs. Plain data, made by `engine/nodes/declaration.py`.

`NodeSpec` is the declaration as clients see it. `NodeRules` is the same, laid out once per class and run for the code
that goes over every node of a graph: sets and dicts instead of searches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.file_names import names_another_folder

# Types of ComfyUI's newer nodes. The first two stand for further inputs (`contract/graph/dynamic_inputs.py`), the third
# for the type that the node's other inputs under the same template have.
DYNAMIC_COMBO = "COMFY_DYNAMICCOMBO_V3"
GROWING = "COMFY_AUTOGROW_V3"
MATCHED = "COMFY_MATCHTYPE_V3"
ANY_TYPE = "*"

Section = Literal["required", "optional", "hidden"]
Values = Mapping[str, Any]  # by name: inputs of a node, fields of parsed JSON
ValueDict = dict[str, Any]  # the same, where they are made or changed

# What the engine gives a hidden input; one of any other type is an input that only other nodes set.
FILLED_IN = frozenset(
    {
        "UNIQUE_ID",
        "PROMPT",
        "DYNPROMPT",
        "EXTRA_PNGINFO",
        "AUTH_TOKEN_COMFY_ORG",
        "API_KEY_COMFY_ORG",
        "COMFY_USAGE_SOURCE",
    }
)


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
    is_open: bool = False  # the choices are what is offered, other values may be good too; a number may be a word
    is_one_folder: bool = False  # the choices are the files of one folder; names in other folders may be good too
    is_listed: bool = False  # declared, and so shown, with no options in the place of options; hidden: as a list
    is_unfollowed: bool = False  # the node gets the link itself, and what it leads to does not run for it

    @property
    def choices(self) -> Sequence[Any] | None:
        """The values to choose from, in either of ComfyUI's notations; None when the input is no choice."""
        if not isinstance(self.type, str):
            return self.type
        found = self.options.get("options") if self.type == "COMBO" else None
        return found if isinstance(found, list | tuple) else None

    def accepts(self, value: object) -> bool:
        """Return True if a value is one of the choices, or may be valid without being one, or if there are none."""
        choices = self.choices
        if choices is None or (self.is_open and isinstance(value, str)):
            return True
        if self.options.get("multiselect") and isinstance(value, list):
            return all(item in choices for item in value)
        return value in choices or (self.is_one_folder and names_another_folder(value))

    def takes_word(self, value: object) -> bool:
        """Return True for a text in the place of a number that the node reads itself, as later releases have them."""
        return self.is_open and self.choices is None and isinstance(value, str) and value.isalpha()

    def allowed(self) -> object:
        """Return the values that a prompt may give, for programs: the choices, or the type with its range."""
        choices = self.choices
        if choices is not None:
            return choices
        return {"type": self.type, **{key: self.options[key] for key in ("min", "max", "step") if key in self.options}}

    @property
    def is_lazy(self) -> bool:
        return self.is_unfollowed or bool(self.options.get("lazy"))

    @property
    def takes_raw_link(self) -> bool:
        return self.is_unfollowed or bool(self.options.get("rawLink"))

    def as_json(self) -> list[Any]:
        """Return the two-element form of `/object_info` and of `input_config` in error bodies."""
        return [self.type if isinstance(self.type, str) else list(self.type), dict(self.options)]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    type: str | Sequence[Any]
    name: str
    is_list: bool | None = False  # None: as False, shown as ComfyUI's nodes show it that return a list as one value


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
    facts: NodeFacts = NO_FACTS

    def section(self, section: Section) -> tuple[InputSpec, ...]:
        return tuple(item for item in self.inputs if item.section == section)


@dataclass(frozen=True, slots=True)
class InputCheck:
    """A class's own check of its inputs, before anything runs (ComfyUI's `VALIDATE_INPUTS`).

    `function(**inputs)` returns True, or False or a text that says what is wrong. It gets the inputs in `names` (all
    that the prompt gives when `takes_all`), None for those that are links, and `input_types` (name to the type of the
    linked output) when it names that.

    As in ComfyUI it takes the place of the range and choice checks of what it is given, and its verdict is told of each
    of these inputs. With `comes_last` it is asked only when those checks are content, and its verdict is told once: of
    the input whose name it begins with (`NAME: what is wrong`), else of the first one.
    With `takes_lists` each input is a list of one value. Inputs within dynamic ones come nested, as the node receives
    them; since they are chosen by their dotted names, only a check that `takes_all` gets their values.
    """

    function: Callable[..., Any]
    names: frozenset[str] = frozenset()
    takes_all: bool = False
    comes_last: bool = False
    takes_lists: bool = False

    def takes(self, name: str) -> bool:
        return self.takes_all or name in self.names


@dataclass(frozen=True, slots=True)
class NodeRules:
    """A declaration laid out for fast use; make it with `rules_of`. `inputs` holds every input by name.

    `streamed` are the inputs that take a result in pieces (`contract/graph/streamed.py`).

    `undeclared` are names of links that the node takes without declaring them; None: any name. A node that
    `takes_any_value` receives values under undeclared names too. With `is_dynamic` the inputs depend on the prompt:
    `dynamic_inputs.expanded` returns those of one node, with the place of each in what the node receives (`places`).
    """

    class_type: str
    is_output: bool
    is_async: bool
    input_is_list: bool
    declared: tuple[InputSpec, ...]  # required, then optional: what a prompt may give
    declared_names: frozenset[str]
    inputs: Mapping[str, InputSpec]
    hidden: Mapping[str, str]  # name to what the engine fills in (`PROMPT`, ...)
    lazy: frozenset[str]
    raw_links: frozenset[str]
    output_types: tuple[str | Sequence[Any], ...]
    lists_out: tuple[bool, ...]
    keyed_by_id: bool  # the same inputs at another node are another result
    has_fingerprint: bool
    check: InputCheck | None
    undeclared: frozenset[str] | None = frozenset()
    takes_any_value: bool = False
    is_dynamic: bool = False
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    streamed: frozenset[str] = frozenset()
    facts: NodeFacts = NO_FACTS

    def takes_link(self, name: str) -> bool:
        """Return True where the node can be called with the value of a link under that name."""
        return self.undeclared is None or name in self.undeclared or self.inputs.get(name) is not None


def _is_filled_in(kind: object) -> bool:
    """Return True for a type that the engine gives a hidden input; packs also declare lists of choices as one."""
    return isinstance(kind, str) and kind in FILLED_IN


def rules_of(
    spec: NodeSpec,
    *,
    is_async: bool = False,
    has_fingerprint: bool = False,
    check: InputCheck | None = None,
    undeclared: frozenset[str] | None = frozenset(),
    takes_any_value: bool = False,
    streamed: frozenset[str] = frozenset(),
) -> NodeRules:
    """Lay out a declaration. Types that are matched within the node become those that the match allows."""
    hidden = {item.name: str(item.type) for item in spec.section("hidden") if _is_filled_in(item.type)}
    declared = tuple(map(without_match, spec.section("required") + spec.section("optional")))
    inputs = {item.name: item for item in (*spec.section("hidden"), *reversed(declared))}
    return NodeRules(
        class_type=spec.class_type,
        is_output=spec.is_output,
        is_async=is_async,
        input_is_list=spec.input_is_list,
        declared=declared,
        declared_names=frozenset(item.name for item in declared),
        inputs=inputs,
        hidden=hidden,
        lazy=frozenset(item.name for item in declared if item.is_lazy),
        raw_links=frozenset(item.name for item in declared if item.takes_raw_link),
        output_types=tuple(ANY_TYPE if item.type == MATCHED else item.type for item in spec.outputs),
        lists_out=tuple(bool(item.is_list) for item in spec.outputs),
        keyed_by_id=not spec.is_idempotent or "UNIQUE_ID" in hidden.values(),
        has_fingerprint=has_fingerprint,
        check=check,
        undeclared=undeclared,
        takes_any_value=takes_any_value,
        is_dynamic=any(item.type in (DYNAMIC_COMBO, GROWING) for item in declared),
        streamed=streamed,
        facts=spec.facts,
    )


def without_match(item: InputSpec) -> InputSpec:
    """Return an input with the types that its match allows in place of the match; any other as it is."""
    if item.type != MATCHED:
        return item
    template = item.options.get("template")
    allowed = template.get("allowed_types") if isinstance(template, Mapping) else None
    return replace(item, type=allowed if isinstance(allowed, str) and allowed else ANY_TYPE)
