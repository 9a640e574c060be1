"""Nodes that repeat a part of a workflow: the start and the end of a loop, and what they expand into.

    Start Loop -> body -> End Loop

The end expands into its start, which knows by then how often the loop runs, and that into the iterations: a
`LoopIteration` in place of the start and a copy of each node of the body, all of them nodes of the run like any other.
An iteration begins when the one before it is over. Loops within the body are copied whole and expand in their turn.
The nodes of the body themselves do not run (`contract/graph/loops.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from darkroom.contract.graph.facts import NodeFacts
from darkroom.contract.graph.loops import MAX_ITERATIONS, LoopNodes, iterations_of, literal_number
from darkroom.contract.graph.prompt import Node, is_link
from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.nodes.base import Expanded, NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Hidden, Matched, Optional, Out, Socket, Unfollowed
from darkroom.engine.nodes.parameters import DynamicChoice, Field, Growing
from darkroom.engine.nodes.sockets import ANY, BOOLEAN, INT
from darkroom.engine.nodes.widgets import Flag, Int, Text

VERSION = "0.46.0"
CATEGORY = "utilities/looping"
MODULE = "comfy_extras.nodes_loop"
MAX_NODES = 50_000
UNKNOWN = float("nan")  # equal to nothing: what has it as its fingerprint runs in each run

LINK = "COMFY_MATCHTYPE_V3"
ITEM = Matched(LINK, template="list_item")
CARRIED = Matched(LINK, template="carried_value")
COLLECTED = Matched(LINK, template="output_value")
MODES = (
    ("simple", (Field("num_iterations", Int(min=0), 4),)),
    (
        "For",
        (
            Field("start_iteration_index", Int(), 0),
            Field("max_iteration", Int(max=0xFFFFFFFFFFFFFFFF), 4),
            Field("step", Int(min=1), 1),
        ),
    ),
    ("List", (Field("list", ITEM),)),
)


class LoopError(ValueError):
    """A loop that cannot run: it has too many iterations, or is no loop of the prompt."""


def _runs_again(environment: NodeEnvironment, cache_iterations: Sequence[bool] = (False,)) -> float | None:
    return None if cache_iterations[0] else UNKNOWN


def _is_new(environment: NodeEnvironment, reuse_cache: Sequence[bool] = (False,)) -> float | None:
    return None if reuse_cache[0] else UNKNOWN


def _is_always_new(environment: NodeEnvironment) -> float:
    return UNKNOWN


@node("StartLoop", display_name="Start Loop", category=CATEGORY, python_module=MODULE, input_is_list=True,
      is_input_list=True, fingerprint=_runs_again,
      facts=NodeFacts(loop="start"), comfyui_version=VERSION)  # fmt: skip
def start_loop(
    context: NodeContext,
    *,
    mode: Annotated[Mapping[str, Any], DynamicChoice(fields=MODES)],
    cache_iterations: Annotated[Any, Flag(extra={"advanced": True})] = False,
    parent_iteration: Annotated[Any, Int(extra={"forceInput": True}), Optional()] = None,
    initial_iteration_value: Annotated[Any, CARRIED, Optional()] = None,
    dynprompt: Annotated[Any, Hidden("DYNPROMPT")] = None,
    execution_list: Annotated[Any, Hidden("EXECUTION_LIST")] = None,
    unique_id: Annotated[Any, Hidden("UNIQUE_ID")] = None,
) -> tuple[
    Annotated[INT, Out("iteration_index")],
    Annotated[BOOLEAN, Out("is_first")],
    Annotated[BOOLEAN, Out("is_last")],
    Annotated[object, ITEM, Out("list_item")],
    Annotated[object, CARRIED, Out("current_iteration_value")],
]:
    """Expand a loop into its iterations. Raises LoopError for a loop that is too long or has too many nodes."""
    loop = context.loop()
    if loop is None or loop.collects is None:
        raise LoopError(f"node {context.node_id}: no loop; expected a Start Loop of the prompt that an End Loop closes")
    values = _indexes_of(mode)
    num_nodes = loop.num_nodes + len(values) * (_nodes_of_body(loop) + 2) + 1
    if num_nodes > MAX_NODES:
        raise LoopError(
            f"{len(values)} iterations of {len(loop.body)} nodes: the run would have {num_nodes:.0f} nodes, "
            f"expected at most {MAX_NODES}"
        )
    context.report_text(f"Iteration 0 / {len(values)}")
    iterations = _Iterations(loop, values, reuses=bool(cache_iterations[0]))
    return Expanded(iterations.graph(), (iterations.result, False, not values, None, None))  # type: ignore[return-value]


def _nodes_of_body(loop: LoopNodes) -> float:
    """Return the nodes that one iteration adds to a run, with those of loops within it whose length is a literal."""
    repeats: dict[str, float] = {}
    for inner in loop.inner.values():
        number = iterations_of(loop.body[inner.start].inputs, literal_number)
        for node_id in inner.body:
            repeats[node_id] = repeats.get(node_id, 1.0) * (1.0 if number is None else number)
    return len(loop.body) + sum(repeats.values())


def _indexes_of(mode: Mapping[str, Any]) -> Sequence[int]:
    """Return the indexes that the iterations have. Every input comes as a list. Raises LoopError for too many."""
    kind = mode["mode"][0]
    if kind == "simple":
        values: Sequence[int] = range(mode["num_iterations"][0])
    elif kind == "For":
        step = mode["step"][0]
        if step < 1:
            raise LoopError(f"step: too small; got {step}, expected 1 at least")
        values = range(mode["start_iteration_index"][0], mode["max_iteration"][0], step)
    else:
        values = range(len(mode["list"]))
    if values[MAX_ITERATIONS:]:  # the length of such a range may be more than Python counts
        raise LoopError(f"{kind}: too many iterations; expected at most {MAX_ITERATIONS}")
    return values


class _Copied(NamedTuple):
    """Links to the output of an iteration, to the value that the next one takes, and to all that it must have run."""

    made: Any
    carried: Any
    needed: list[Any]


class _Iterations:
    """The graph that a loop expands into; ids are those of ComfyUI, below the loop's start."""

    def __init__(self, loop: LoopNodes, values: Sequence[int], *, reuses: bool) -> None:
        self._loop = loop
        self._values = values
        self._reuses = reuses
        self._prefix = f"{loop.start.id}.0.0."
        self._nodes: dict[str, ValueDict] = {}
        self.result = [f"{self._prefix}result", 0]

    def graph(self) -> Mapping[str, ValueDict]:
        carried: Any = self._loop.start.inputs.get("initial_iteration_value")
        needed: list[Any] = []
        outputs: list[Any] = []
        progress: Any = None
        for position in range(len(self._values)):
            copied = self._add_iteration(position, carried, needed)
            carried, needed = copied.carried if is_link(copied.carried) else carried, copied.needed
            outputs = [*outputs, copied.made] if self._loop.collects else [copied.made]
            progress = self._add_progress(position, needed, progress)
        made = {f"output{index}": output for index, output in enumerate(outputs) if is_link(output)}
        after = {} if progress is None else {"progress": progress}
        self._add("result", "LoopResult", {**made, **after, **_waiting_for(needed)}, self._loop.end.id)
        return self._nodes

    def _add_iteration(self, position: int, carried: Any, needed: Sequence[Any]) -> _Copied:
        """Add the copies of the body for one iteration, which begins after what the last one made."""
        first = self._add(
            f"iteration_{position}",
            "LoopIteration",
            {
                "iteration_index": self._values[position],
                "is_first": position == 0,
                "is_last": position == len(self._values) - 1,
                **_given("list_item", self._loop.start.inputs.get("mode.list")),
                **_given("current_iteration_value", carried),
                "item_index": position,
                "reuse_cache": self._reuses,
                **_waiting_for(needed),
            },
            self._loop.start.id,
        )
        ids = {node_id: f"{self._prefix}{position}_{node_id}" for node_id in self._loop.body}
        renamed = {self._loop.start.id: first, **ids}
        for node_id, original in self._loop.body.items():
            inputs = {name: _renamed(value, renamed) for name, value in original.inputs.items()}
            self._nodes[ids[node_id]] = _copy_of(original, inputs) | self._loop_within(node_id, ids)
        end = {name: _renamed(value, renamed) for name, value in self._loop.end.inputs.items()}
        made, next_value = end.get("output_value"), end.get("next_iteration_value")
        ended = [value for name, value in end.items() if name.startswith("termination")]
        return _Copied(made, next_value, [value for value in (made, next_value, *ended) if is_link(value)])

    def _loop_within(self, node_id: str, ids: Mapping[str, str]) -> ValueDict:
        """Return the values that a copied end of a loop within this one needs of the copies."""
        inner = self._loop.inner.get(node_id)
        if inner is None:
            return {}
        return {"loop": {"start": ids[inner.start], "body": [ids[item] for item in inner.body]}}

    def _add_progress(self, position: int, needed: Sequence[Any], last: Any) -> list[Any]:
        inputs = {"start_id": self._loop.start.id, "position": position + 1, "total": len(self._values)}
        after = {} if last is None else {"previous_progress": last}
        name = f"progress_{position}"
        return [self._add(name, "LoopProgress", {**inputs, **_waiting_for(needed), **after}, self._loop.start.id), 0]

    def _add(self, name: str, class_type: str, inputs: ValueDict, shown_at: str) -> str:
        node_id = f"{self._prefix}{name}"
        self._nodes[node_id] = {"class_type": class_type, "inputs": inputs, **_shown_as(shown_at)}
        return node_id


def _copy_of(original: Node, inputs: ValueDict) -> ValueDict:
    return {"class_type": original.class_type, "inputs": inputs, **_shown_as(original.id)}


def _shown_as(node_id: str) -> ValueDict:
    """Return that a node is shown, and named in errors, as another one."""
    return {"override_display_id": node_id, "override_real_id": node_id}


def _renamed(value: Any, ids: Mapping[str, str]) -> Any:
    return [ids.get(value[0], value[0]), value[1]] if is_link(value) else value


def _given(name: str, value: Any) -> ValueDict:
    return {} if value is None else {name: value}


def _waiting_for(links: Sequence[Any]) -> ValueDict:
    """Return inputs that only make a node wait."""
    return {f"dependency{index}": link for index, link in enumerate(links)}


@node("LoopIteration", display_name=None, category="sd", python_module=MODULE, input_is_list=True, is_input_list=True,
      fingerprint=_is_new, takes_any_value=True, dev_only=True, comfyui_version=VERSION)  # fmt: skip
def loop_iteration(
    context: NodeContext,
    *,
    iteration_index: Annotated[Any, Int()],
    is_first: Annotated[Any, Flag()],
    is_last: Annotated[Any, Flag()],
    list_item: Annotated[Any, Socket("*"), Optional()] = None,
    current_iteration_value: Annotated[Any, Socket("*"), Optional()] = None,
    reuse_cache: Annotated[Any, Flag()],
    **others: Any,
) -> tuple[INT, BOOLEAN, BOOLEAN, ANY, Annotated[object, Socket("*"), Out(is_list=True)]]:
    """Return the values that one iteration of a loop starts with; `item_index` is its item of a list."""
    index = others.get("item_index", (0,))[0]
    item = list_item[index] if list_item else None
    carried = [None] if current_iteration_value is None else list(current_iteration_value)
    return iteration_index[0], is_first[0], is_last[0], item, carried


@node("LoopProgress", display_name=None, category="sd", python_module=MODULE, is_output=True, input_is_list=True,
      is_input_list=True, fingerprint=_is_always_new, takes_any_value=True, dev_only=True,
      comfyui_version=VERSION)  # fmt: skip
def loop_progress(
    context: NodeContext,
    *,
    start_id: Annotated[Any, Text(multiline=False)],
    position: Annotated[Any, Int()],
    total: Annotated[Any, Int()],
    **others: Any,
) -> Annotated[NodeOutput, Socket("INT")]:
    """Show with a loop's start how many of its iterations are over."""
    context.report_text(f"Iteration {position[0]} / {total[0]}")
    context.report_progress(position[0], total[0])
    return NodeOutput({}, (position[0],))


@node("LoopResult", display_name=None, category="sd", python_module=MODULE, input_is_list=True, is_input_list=True,
      takes_any_value=True, dev_only=True, comfyui_version=VERSION)  # fmt: skip
def loop_result(context: NodeContext, **others: Any) -> ANY:
    """Return the results of the iterations of a loop, in one list as one value."""
    made: list[Any] = []
    while (values := others.get(f"output{len(made)}")) is not None:
        made.append(values)
    return [value for values in made for value in values]


@node("EndLoop", display_name="End Loop", category=CATEGORY, python_module=MODULE, input_is_list=True,
      is_input_list=True, facts=NodeFacts(loop="end"),
      comfyui_version=VERSION)  # fmt: skip
def end_loop(
    context: NodeContext,
    *,
    output_value: Annotated[Any, COLLECTED, Unfollowed(), Optional()] = None,
    next_iteration_value: Annotated[Any, CARRIED, Unfollowed(), Optional()] = None,
    accumulate: Annotated[Any, Flag()] = False,
    terminations: Annotated[
        Any,
        Growing(item=Field("termination", Socket("*")), prefix="termination", min=0, max=50),
        Unfollowed(),
        Optional(),
    ] = None,
    execution_list: Annotated[Any, Hidden("EXECUTION_LIST")] = None,
    unique_id: Annotated[Any, Hidden("UNIQUE_ID")] = None,
) -> Annotated[list[Any], COLLECTED, Out("outputs", is_list=True)]:
    """Run a loop: return what its last iteration made, or with `accumulate` what all of them made.

    Raises LoopError where it closes no loop of the prompt.
    """
    loop = context.loop()
    if loop is None:
        raise LoopError(f"node {context.node_id}: no loop; expected an End Loop of the prompt behind a Start Loop")
    opened = f"{loop.start.id}.0.0.loop"
    start = {
        "class_type": loop.start.class_type,
        "inputs": dict(loop.start.inputs),
        "loop": {"end": loop.end.id, "collects": bool(accumulate[0])},
        "is_changed": UNKNOWN,  # its inputs do not show the body
        **_shown_as(loop.start.id),
    }
    return Expanded({opened: start}, ([opened, 0],))  # type: ignore[return-value]


NODES = (start_loop, end_loop, loop_iteration, loop_progress, loop_result)
