"""NodeClass: the one form of node classes that the runtime sees, and what a node receives and returns.

Built-in nodes are functions (`declaration.py`), those of packs are classes in ComfyUI's form (`legacy_node.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.loops import LoopNodes
from darkroom.contract.graph.spec import NodeRules, NodeSpec
from darkroom.engine.cancel import CancelToken


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


class NodeClass(ABC):
    """Interface of one class of nodes, the only one that `runtime/` and `graph/` use."""

    class_type: str
    facts: NodeFacts = NO_FACTS
    """The facts that hold in every environment; a class in ComfyUI's form has none."""

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
