"""Declaration of built-in nodes: one typed function each.

A built-in node is one typed function; `@node` derives its declaration from the signature, so nothing is said twice:

    @node("ImageInvert", display_name="Invert Image", category="image")
    def image_invert(context: NodeContext, *, image: IMAGE) -> IMAGE:
        return 1.0 - image

- The first parameter is the `NodeContext`; all others are keyword-only and are the node's inputs, in that order.
- A parameter's type names the socket: `MODEL`, `IMAGE`... of `sockets.py` (each an `Annotated[..., Socket("NAME")]`),
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
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.spec import OutputSpec, Section
from darkroom.engine.nodes.base import NodeOutput
from darkroom.engine.nodes.function_node import FunctionNode
from darkroom.engine.nodes.markers import Hidden, Lazy, Matched, Optional, Out, Socket, Streams, Unfollowed
from darkroom.engine.nodes.parameters import Parameter
from darkroom.engine.nodes.widgets import Widget


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
