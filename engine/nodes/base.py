"""Declaration of nodes, and the context a node receives while it runs.

A built-in node is one typed function; `@node` derives its declaration from the signature, so nothing is said twice:

    @node("ImageInvert", display_name="Invert Image", category="image")
    def image_invert(context: NodeContext, *, image: IMAGE) -> IMAGE:
        return 1.0 - image

- The first parameter is the `NodeContext`; all others are keyword-only and are the node's inputs, in that order.
- A parameter's type names the socket: `MODEL`, `IMAGE`... of `values.py` (each an `Annotated[..., Socket("NAME")]`),
  or `Annotated[int, Int(...)]`, `Annotated[float, Float(...)]`, `Annotated[str, Text(...)]`, `Annotated[bool, Flag()]`,
  `Annotated[str, Choice((...))]`, `Annotated[str, ModelFile("checkpoints")]`, `Annotated[str, InputFile(...)]`.
- A widget's default value is the parameter's default. An input is optional (ComfyUI's section of that name) when its
  annotation also has `Optional()`, hidden when it is `Annotated[..., Hidden("PROMPT")]`.
- `Annotated[Mapping[str, Any], DynamicChoice(...)]` and `Growing(...)` are inputs that depend on the prompt.
- The return type gives the outputs: one socket type, a `tuple[...]` of them, or `None`. `Annotated[IMAGE, Out("name")]`
  names an output otherwise than its type. An output node returns a `NodeOutput`; one that also has outputs returns
  `NodeOutput(ui, result=(...))` and is annotated `Annotated[NodeOutput, IMAGE]`, with a `tuple[...]` for several.

- `Annotated[..., Socket("IMAGE"), Lazy()]` is an input the engine computes only when `needs(**inputs)` names it.
- `Annotated[IMAGE, Streams()]` is an input that also takes a result in pieces, a `Streamed` value, which is computed
  while the node takes it. A node whose `context.output_is_streamed()` is True may return one.
- A node may return `Expanded(graph, result)` to be replaced by a graph of other nodes, or an `ExecutionBlocker` as (or
  among) its outputs, to keep what depends on them from running. An `async def` node is awaited while others go on.

A class in ComfyUI's form registers too (`engine/nodes/legacy_node.py`); both are a `NodeClass`, and nothing past these
two files can tell them apart.
"""

from __future__ import annotations

import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, get_args, get_origin, get_type_hints

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts, SamplerFacts
from darkroom.contract.graph.loops import LoopNodes
from darkroom.contract.graph.spec import (
    ANY_TYPE,
    DYNAMIC_COMBO,
    GROWING,
    InputCheck,
    InputSpec,
    NodeRules,
    NodeSpec,
    OutputSpec,
    Section,
    ValueDict,
    rules_of,
)
from darkroom.engine.cancel import CancelToken
from darkroom.engine.text.prompt_weights import nesting_problem

LOADED_TYPES = frozenset({"MODEL", "CLIP", "VAE", "CLIP_VISION"})  # of which a file may lack one


# --- annotations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Socket:
    """A value that only a link can supply; `type` is ComfyUI's type name."""

    type: str

    def options(self) -> ValueDict:
        return {}


@dataclass(frozen=True, slots=True)
class Matched(Socket):
    """A link of any of the `allowed` types (all: `*`), the same as at the other sockets with this template's name."""

    template: str = ""
    allowed: tuple[str, ...] = (ANY_TYPE,)

    def options(self) -> ValueDict:
        return {"template": {"template_id": self.template, "allowed_types": ",".join(self.allowed)}}


@dataclass(frozen=True)
class Widget(ABC):
    """An input with a value of its own in the prompt. `extra` holds further options, as `/object_info` lists them."""

    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def type_in(self, environment: NodeEnvironment) -> str | Sequence[object]:
        """Return ComfyUI's type name, or the values to choose from at this moment."""

    def options(self) -> ValueDict:
        named = {key: value for key, value in vars(self).items() if key != "extra" and value is not None}
        return {**named, **self.extra}

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        """Return the options at this moment. They differ from `options` for widgets that list files."""
        return self.options()

    def facts(self, name: str) -> NodeFacts:
        """Return the facts that a node declares by having this input under that name."""
        return NO_FACTS

    def samplers_in(self, environment: NodeEnvironment) -> Mapping[str, SamplerFacts]:
        """Return the samplers to choose from at this moment, those with facts."""
        return {}


@dataclass(frozen=True)
class Int(Widget):
    min: int | None = None
    max: int | None = None
    step: int | None = None
    control_after_generate: bool | None = None

    def type_in(self, environment: NodeEnvironment) -> str:
        return "INT"


@dataclass(frozen=True)
class Float(Widget):
    min: float | None = None
    max: float | None = None
    step: float | None = None
    round: float | bool | None = None

    def type_in(self, environment: NodeEnvironment) -> str:
        return "FLOAT"


@dataclass(frozen=True)
class Text(Widget):
    multiline: bool | None = None
    dynamicPrompts: bool | None = None  # noqa: N815 - ComfyUI's spelling

    def type_in(self, environment: NodeEnvironment) -> str:
        return "STRING"


@dataclass(frozen=True)
class FilePrefix(Text):
    """A text that names the files which the node saves: a path below the output folder, without number and ending."""

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(saves=name)


@dataclass(frozen=True)
class PromptText(Text):
    """A text that a text encoder reads, with weights in brackets."""

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return the reason why the text cannot be read, or None if it can or a link supplies it."""
        return None if value is None else nesting_problem(str(value))


@dataclass(frozen=True)
class Flag(Widget):
    def type_in(self, environment: NodeEnvironment) -> str:
        return "BOOLEAN"


@dataclass(frozen=True)
class Choice(Widget):
    """A choice among fixed values. Clients see a default only if the signature has one."""

    values: tuple[Any, ...] = ()

    def type_in(self, environment: NodeEnvironment) -> tuple[object, ...]:
        return self.values

    def options(self) -> ValueDict:
        return dict(self.extra)


@dataclass(frozen=True)
class Combo(Choice):
    """`Choice` in the notation of ComfyUI's newer nodes: type `COMBO`, the values among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options(self) -> ValueDict:
        return {"multiselect": False, "options": list(self.values), **self.extra}


@dataclass(frozen=True)
class OpenCombo(Combo):
    """`Combo` that takes other texts than its values too."""

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(open=(name,))


class OpenChoice(Choice):
    """`Choice` that takes other texts than its values too."""

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(open=(name,))


@dataclass(frozen=True)
class ModelFile(Widget):
    """A file of one kind of model (`checkpoints`, `vae`, ...) or of several, as `folders.py` lists them.

    `also` are names offered in addition to the files ("None", built-in previews).
    """

    kind: str = ""
    also: tuple[str, ...] = ()

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        return [*environment.model_files(self.kind), *self.also]

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return the fault of a file by its header alone, None for a whole one and for a name from a link."""
        return environment.model_problem(self.kind, value) if isinstance(value, str) else None

    def options(self) -> ValueDict:
        return dict(self.extra)

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(models={name: self.kind})


@dataclass(frozen=True)
class ModelCombo(ModelFile):
    """`ModelFile` in the notation of ComfyUI's newer nodes: type `COMBO`, the files among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        return {"multiselect": False, "options": ModelFile.type_in(self, environment), **self.extra}


@dataclass(frozen=True)
class InputFile(Widget):
    """A file in the input folder. `content` narrows the list: `image` by media type, `.latent` by file extension.

    `"photo.png [output]"` names a file of another folder (`input`, `output`, `temp`), as in ComfyUI. Validation of the
    prompt checks that the file exists; it does not check against the list.
    """

    content: str = "image"

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        return environment.input_files(self.content)

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return the fault of a file's name, in ComfyUI's words, or None without one.

        None also stands for a name that a link supplies.
        """
        if value is None:
            return None
        try:
            if environment.input_path(str(value)).is_file():
                return None
        except (OSError, ValueError):
            pass  # the name is too long, or leaves its folder: for the caller there is no such file
        return f"Invalid {self.content.strip('.')} file: {value}"

    def options(self) -> ValueDict:
        return dict(self.extra)

    def facts(self, name: str) -> NodeFacts:
        kind = self.content.strip(".")
        return NodeFacts(files={name: "image" if kind == "image" else "latent" if kind == "latent" else "file"})


@dataclass(frozen=True)
class InputCombo(InputFile):
    """`InputFile` in the notation of ComfyUI's newer nodes: type `COMBO`, the files among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        return {"multiselect": False, "options": InputFile.type_in(self, environment), **self.extra}


@dataclass(frozen=True)
class RecordedFile(InputFile):
    """A file that ComfyUI's page records and uploads. `kind` is the type of its widget."""

    kind: str = ""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return self.kind

    def facts(self, name: str) -> NodeFacts:
        return InputFile.facts(self, name).joined(NodeFacts(recorded=(name,)))


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


@dataclass(frozen=True, slots=True)
class Optional:
    """Marker of an input that the prompt may leave out."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """Marker of an input that is computed only when the node requests it."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Marker of an input that takes a result in pieces too."""


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """Marker of an input that receives its link itself; what the link leads to does not run for it."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """An input that the engine fills in: `PROMPT`, `EXTRA_PNGINFO`, `UNIQUE_ID`, `DYNPROMPT`."""

    type: str


@dataclass(frozen=True, slots=True)
class Out:
    """Marker that gives an output a name other than its type, or makes it a list.

    None is the value of ComfyUI's nodes that return a list as one value: no list between nodes.
    """

    name: str | None = None
    is_list: bool | None = False


# --- what a node returns and may touch -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """Result of an output node: its outputs, and a map from kind (`images`, `text`, ...) to JSON-ready items."""

    ui: Mapping[str, Sequence[Any]]
    result: tuple[Any, ...] = ()

    def passing_on(self, value: object) -> NodeOutput:
        """Return the same with a value as its one output, as nodes that save or show pass on what they got."""
        return NodeOutput(self.ui, (value,))


@dataclass(frozen=True, slots=True)
class Expanded:
    """Graph of nodes that replaces the node which returned it.

    `graph` is in the prompt's format with ids of its own. An item of `result` is a link into it, `[node_id, slot]`, or
    a value.
    """

    graph: Mapping[str, Any]
    result: tuple[Any, ...] = ()
    ui: Mapping[str, Sequence[Any]] | None = None


class ExecutionBlocker:
    """Output value that keeps every node depending on it from running. With a message, the client is notified."""

    __slots__ = ("message",)

    def __init__(self, message: str | None) -> None:
        self.message = message


class Returned(NamedTuple):
    """Result of one call of a node, in one form for every kind of node.

    `result` has an item per output, or is one `ExecutionBlocker` for all, or None when the call gave no outputs.
    `expand` is the graph that replaces the node.
    """

    result: Any
    ui: Mapping[str, Sequence[Any]] | None = None
    expand: Mapping[str, Any] | None = None


class NodeEnvironment(Protocol):
    """Files, samplers and schedules that exist now, on which node declarations depend."""

    def sampler_names(self) -> Sequence[str]: ...

    def schedule_names(self) -> Sequence[str]: ...

    def model_files(self, kind: str) -> list[str]: ...

    def model_problem(self, kind: str, name: str) -> str | None:
        """Return the fault of an existing model file, by its header and its length; None for other names."""
        ...

    def input_files(self, content: str) -> list[str]: ...

    def input_path(self, name: str) -> Path:
        """Return the path of `"photo.png"` or `"photo.png [output]"`, even if no such file exists.

        Raises ValueError when the name leaves its folder.
        """
        ...

    def max_pixels(self) -> int:
        """Return the largest number of pixels that all frames of an image may have together, at this moment."""
        ...

    def free_bytes(self) -> int:
        """Return the memory that a decoded video or audio may take, at this moment."""
        ...


def _unheard(text: str) -> None:
    """Discard a text that has no receiver."""


def _listed(_name: str) -> bool:
    """Return True: values are given item by item."""
    return True


def _no_loop() -> LoopNodes | None:
    """Return None: the node is of no loop."""
    return None


def _not_continued(node_ids: Collection[str]) -> None:
    """Have no effect: outside of a run nothing goes on."""


def _held() -> bool:
    """Return False: the result is held for whoever takes it."""
    return False


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Everything a node may use during one call.

    `report_preview` takes a latent [B, C, h, w] as the sampler sees it together with the format of its model (the
    result of `get_model_object("latent_format")`), or an image in the form ComfyUI's nodes use: `(format, Pillow
    image, largest side in pixels or None)`. It is called before the `report_progress` that it belongs to.

    `models` is the `ModelStore` (checkpoints -> values of `values.py`, through the one `ModelPool`), `files` the
    `RunFiles` of `engine/runtime/outputs.py`. Both are typed where they are created, since this file does not import
    those types.
    """

    node_id: str
    prompt_id: str
    cancel: CancelToken
    report_progress: Callable[[float, float], None]  # value, maximum
    report_preview: Callable[..., None] | None  # (preview, latent_format=None); None when nobody asked for previews
    models: Any
    files: Any
    embed_metadata: bool = True
    list_index: int = 0  # which element of its lists this call is for
    report_text: Callable[[str], None] = _unheard  # shown with the node
    output_is_streamed: Callable[[], bool] = _held  # True where one input alone takes the result, and in pieces
    continued: Callable[[Collection[str]], None] = _not_continued  # a prompt that goes on has these nodes changed
    input_comes_as_list: Callable[[str], bool] = _listed  # False where the source gives one value, perhaps a list
    loop: Callable[[], LoopNodes | None] = _no_loop  # of the start and the end of a loop


# --- what the runtime sees -------------------------------------------------------------------------------------------


class NodeClass(ABC):
    """Interface of one class of nodes, the only one that `runtime/` and `graph/` use."""

    class_type: str

    @abstractmethod
    def spec(self, environment: NodeEnvironment) -> NodeSpec:
        """Return the declaration at this moment (lists of files change)."""

    @abstractmethod
    def rules(self, environment: NodeEnvironment) -> NodeRules:
        """Return the declaration at this moment, prepared for validation, scheduling and execution."""

    def declared_facts(self, environment: NodeEnvironment) -> NodeFacts:
        """Return the facts of the class, without the table of samplers that it may offer."""
        return self.rules(environment).facts

    @abstractmethod
    def instance(self) -> Any:
        """Return the state of one node, kept while prompts name that node, or None for a class without state."""

    @abstractmethod
    def fingerprint_of(self, environment: NodeEnvironment, inputs: Mapping[str, object]) -> object:
        """Return the value that a result depends on besides the inputs.

        Called only when the rules have `has_fingerprint`. `inputs` has None for links. May return an awaitable.
        """

    @abstractmethod
    def missing_inputs(self, instance: object, inputs: Mapping[str, object]) -> object:
        """Return the names of the lazy inputs this call needs, given the known ones (None for the others).

        May return an awaitable.
        """

    @abstractmethod
    def call(self, instance: Any, context: NodeContext, inputs: dict[str, Any]) -> Any:
        """Run the node once. `returned` converts the outcome; an async class returns an awaitable of it."""

    @abstractmethod
    def returned(self, outcome: object) -> Returned:
        """Convert the outcome of a call to the one form that the runtime reads."""


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
            if isinstance(item.marker, InputFile | ModelFile | PromptText) and item.name not in names
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
        is_open = isinstance(self.marker, InputFile | OpenCombo | OpenChoice)  # files are checked by name
        return InputSpec(
            self.name,
            self.marker.type_in(environment),
            options,
            self.section,
            is_open,
            is_unfollowed=self.is_unfollowed,
        )


def node(
    class_type: str,
    *,
    display_name: str | None = "",
    category: str,
    is_output: bool = False,
    python_module: str = "nodes",
    is_idempotent: bool = True,
    fingerprint: Callable[..., Any] | None = None,
    check: Callable[..., str | None] | None = None,
    needs: Callable[..., Sequence[str]] | None = None,
    input_is_list: bool = False,
    takes_any_value: bool = False,
    advanced: Collection[str] = (),
    facts: NodeFacts = NO_FACTS,
    **extra: Any,
) -> Callable[[Callable[..., Any]], FunctionNode]:
    """Make a node class from a typed function; the module docstring describes how its signature is read.

    `fingerprint(environment, **inputs)` returns the value that a result depends on besides its inputs (a file's
    content).

    `check(environment, **inputs)` returns what is wrong with the inputs it names: of one that it says (`NAME: what is
    wrong`), else of the first. It is called before anything runs, once their ranges and choices are valid. It is not
    called when a link supplies one of them, unless that one has a default.

    `needs(**inputs)` returns the names of the lazy inputs that are required, given the others.

    With `input_is_list` every input is a list and the node is called once. Otherwise it is called for each element of
    the longest list it receives.

    `facts` are what those who read a prompt need to know of the node beyond its inputs and outputs. Those that its
    inputs declare (files that they name, the prefix of what it saves) are added.

    With `takes_any_value` the function has a parameter `**others` for values under names that it does not declare.

    `advanced` are the names of inputs that a page shows only on request.

    Without a `display_name` the class name is displayed. None is the value of ComfyUI's newer nodes that set none.

    Raises TypeError when an annotation names no socket or widget, or `advanced` no input.
    """

    def wrap(function: Callable[..., object]) -> FunctionNode:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
        keywords = [item for item in signature.parameters.values() if item.kind is inspect.Parameter.KEYWORD_ONLY]
        unknown = set(advanced) - {item.name for item in keywords}
        if unknown:
            raise TypeError(f"{class_type}: no inputs of the names in `advanced`: {', '.join(sorted(unknown))}")
        parameters = tuple(_parameter(class_type, item, hints[item.name], advanced) for item in keywords)
        return FunctionNode(
            class_type=class_type,
            function=function,
            display_name=class_type if display_name == "" else display_name,
            category=category,
            is_output=is_output,
            python_module=python_module,
            is_idempotent=is_idempotent,
            extra={**extra, **_matched_outputs(hints.get("return"))},
            parameters=parameters,
            outputs=_outputs(class_type, hints.get("return")),
            fingerprint=fingerprint,
            check=check,
            needs=needs,
            input_is_list=input_is_list,
            takes_any_value=takes_any_value,
            facts=_with_inputs(facts, parameters),
        )

    return wrap


def _with_inputs(facts: NodeFacts, parameters: Sequence[Parameter]) -> NodeFacts:
    for item in parameters:
        if isinstance(item.marker, Widget):
            facts = facts.joined(item.marker.facts(item.name))
    return facts


def _parameter(class_type: str, item: inspect.Parameter, hint: object, advanced: Collection[str]) -> Parameter:
    markers = _markers(hint)
    for marker in markers:
        if isinstance(marker, (Socket, Widget, Hidden)):
            section: Section = "required"
            if isinstance(marker, Hidden):
                section = "hidden"
            elif any(isinstance(other, Optional) for other in markers):
                section = "optional"
            is_lazy = any(isinstance(other, Lazy) for other in markers)
            is_streamed = any(isinstance(other, Streams) for other in markers)
            is_unfollowed = any(isinstance(other, Unfollowed) for other in markers)
            return Parameter(
                item.name, section, marker, item.default, is_lazy, is_streamed, is_unfollowed, item.name in advanced
            )
    raise TypeError(f"{class_type}: parameter {item.name!r} names no socket or widget")


def _outputs(class_type: str, hint: object) -> tuple[OutputSpec, ...]:
    if hint is None or hint is type(None) or hint is NodeOutput:
        return ()
    several = (item for item in (hint, *_markers(hint)) if get_origin(item) is tuple)
    items = get_args(next(several, tuple[hint]))  # type: ignore[valid-type]
    return tuple(_output(class_type, item) for item in items)


def _matched_outputs(hint: object) -> dict[str, list[str | None]]:
    """Return the template of each output as `/object_info` lists them, `{}` where no output is matched to an input."""
    items = get_args(hint) if get_origin(hint) is tuple else (hint,)
    markers = (next((item for item in _markers(output) if isinstance(item, Matched)), None) for output in items)
    templates = [None if marker is None else marker.template for marker in markers]
    return {"output_matchtypes": templates} if any(templates) else {}


def _output(class_type: str, hint: object) -> OutputSpec:
    markers = _markers(hint)
    out = next((marker for marker in markers if isinstance(marker, Out)), Out())
    for marker in markers:
        if isinstance(marker, Socket):
            return OutputSpec(marker.type, out.name or marker.type, out.is_list)
    raise TypeError(f"{class_type}: the return type {hint!r} names no socket")


def _markers(hint: object) -> tuple[object, ...]:
    """Return the markers of an annotation, including those inside a union with None."""
    if get_origin(hint) is Annotated:
        base, *markers = get_args(hint)
        return (*markers, *_markers(base))
    if get_origin(hint) in (types.UnionType,) or str(get_origin(hint)) == "typing.Union":
        return tuple(marker for item in get_args(hint) for marker in _markers(item))
    return ()
