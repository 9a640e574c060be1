"""Loops in an engine: how often their bodies run, in which order, what comes out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.events import Event, NodeProgress, NodeText, RunFailed
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Socket
from darkroom.engine.nodes.sockets import ANY
from darkroom.engine.nodes.widgets import Int, Text
from darkroom.engine.settings import EngineSettings
from tests.contract.graph.declared import node as of_class

BUILT_IN = {item.class_type: item for item in built_in_nodes()}
USED = (
    "StartLoop", "EndLoop", "LoopIteration", "LoopProgress", "LoopResult", "CreateList", "GetItemFromList",
    "PreviewAny", "PrimitiveInt", "ComfySwitchNode",
)  # fmt: skip
Told = list[Event]


class Looping:
    """An engine with a node that adds numbers and notes each of its calls."""

    def __init__(self, base: Path) -> None:
        self.added: list[tuple[int, int]] = []
        self.when_added: Callable[[], None] = lambda: None

        @node("Add", category="test")
        def add(
            context: NodeContext,
            *,
            a: Annotated[int, Int()],
            b: Annotated[int, Int()],
            note: Annotated[str, Text(), Optional()] = "",
        ) -> Annotated[int, Socket("INT")]:
            self.added.append((a, b))
            self.when_added()
            context.cancel.check()
            if note == "fail" and a == 2:
                raise ValueError("no twos")
            return a + b

        @node("Note", category="test", is_output=True)
        def note(context: NodeContext, *, value: ANY) -> Annotated[NodeOutput, Socket("*")]:
            return NodeOutput({"text": (str(value),)}, (value,))

        self.engine = Engine(
            EngineSettings(base_directory=base, cpu=True), (add, note, *(BUILT_IN[name] for name in USED))
        )

    def run(self, prompt: dict[str, Any], told: Told | None = None) -> RunResult:
        self.added.clear()
        events: Told = [] if told is None else told
        checked = self.engine.check(prompt)
        assert not checked.node_problems
        request = RunRequest("p", checked.prompt, checked.outputs, {})
        return self.engine.submit(request, events.append).result(timeout=60)

    def shown(self, prompt: dict[str, Any]) -> list[str]:
        """Return the texts that node `show` shows."""
        result = self.run(prompt)
        assert result.status == "success"
        return list(result.outputs["show"]["text"])


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looping]:
    made = Looping(tmp_path_factory.mktemp("loops"))
    yield made
    made.engine.close()


def start(num_iterations: Any = 4, *, cached: bool = False, **inputs: Any) -> dict[str, Any]:
    simple = {"mode": "simple", "mode.num_iterations": num_iterations, "cache_iterations": cached}
    return of_class("StartLoop", **(simple | inputs))


def summing(
    num_iterations: Any = 4, *, accumulate: bool = False, cached: bool = False, note: str = ""
) -> dict[str, Any]:
    """Return a loop that adds the index of each iteration to what it had before, from 10 on."""
    return {
        "start": start(num_iterations, cached=cached, initial_iteration_value=["first", 0]),
        "first": of_class("PrimitiveInt", value=10),
        "add": of_class("Add", a=["start", 0], b=["start", 4], note=note),
        "end": of_class("EndLoop", output_value=["add", 0], next_iteration_value=["add", 0], accumulate=accumulate),
        "show": of_class("PreviewAny", source=["end", 0]),
    }


def test_each_iteration_takes_what_the_last_one_made(looping: Looping) -> None:
    assert looping.shown(summing()) == ["16"]
    assert looping.added == [(0, 10), (1, 10), (2, 11), (3, 13)]


def test_what_all_iterations_made_comes_as_a_list(looping: Looping) -> None:
    assert looping.shown(summing(accumulate=True)) == ["10", "11", "13", "16"]


def test_the_number_of_iterations_may_come_from_a_link(looping: Looping) -> None:
    assert looping.shown(summing(["count", 0]) | {"count": of_class("PrimitiveInt", value=2)}) == ["11"]
    assert len(looping.added) == 2


def test_a_range_has_its_first_number_and_its_step(looping: Looping) -> None:
    counted = {"mode": "For", "mode.start_iteration_index": 3, "mode.max_iteration": 10, "mode.step": 3}
    loop = summing(accumulate=True)
    loop["start"]["inputs"] = {**counted, "cache_iterations": False}
    loop["add"]["inputs"]["b"] = 0
    assert looping.shown(loop) == ["3", "6", "9"]


def test_the_items_of_a_list_come_one_by_one_with_first_and_last(looping: Looping) -> None:
    listed = {
        "one": of_class("PrimitiveInt", value=5),
        "two": of_class("PrimitiveInt", value=7),
        "list": of_class("CreateList", **{"inputs.input0": ["one", 0], "inputs.input1": ["two", 0]}),
        "start": of_class("StartLoop", **{"mode": "List", "mode.list": ["list", 0], "cache_iterations": False}),
        "add": of_class("Add", a=["start", 3], b=100),
        "marks": of_class("CreateList", **{f"inputs.input{n}": ["start", slot] for n, slot in enumerate((0, 1, 2))}),
        "both": of_class("CreateList", **{"inputs.input0": ["add", 0], "inputs.input1": ["marks", 0]}),
        "end": of_class("EndLoop", output_value=["both", 0], accumulate=True),
        "show": of_class("PreviewAny", source=["end", 0]),
    }
    assert looping.shown(listed) == ["105", "0", "True", "False", "107", "1", "False", "True"]


def test_a_list_is_carried_whole(looping: Looping) -> None:
    carried = {
        "start": start(3, initial_iteration_value=["list", 0]),
        "n": of_class("PrimitiveInt", value=1),
        "list": of_class("CreateList", **{"inputs.input0": ["n", 0], "inputs.input1": ["n", 0]}),
        "a": of_class("GetItemFromList", list=["start", 4], index=0),
        "b": of_class("GetItemFromList", list=["start", 4], index=1),
        "add": of_class("Add", a=["a", 0], b=["b", 0]),
        "next": of_class("CreateList", **{"inputs.input0": ["b", 0], "inputs.input1": ["add", 0]}),
        "end": of_class("EndLoop", output_value=["next", 0], next_iteration_value=["next", 0], accumulate=False),
        "show": of_class("PreviewAny", source=["end", 0]),
    }
    assert looping.shown(carried) == ["3", "5"]  # the Fibonacci numbers


def test_what_a_switch_leaves_out_of_the_first_iteration_is_not_computed(looping: Looping) -> None:
    """Without an initial value the first iteration has no list to take an item of."""
    continued = {
        "start": start(3),
        "n": of_class("PrimitiveInt", value=7),
        "item": of_class("GetItemFromList", list=["start", 4], index=1),
        "value": of_class("ComfySwitchNode", switch=["start", 1], on_true=["n", 0], on_false=["item", 0]),
        "add": of_class("Add", a=["value", 0], b=1),
        "next": of_class("CreateList", **{"inputs.input0": ["n", 0], "inputs.input1": ["add", 0]}),
        "end": of_class("EndLoop", output_value=["add", 0], next_iteration_value=["next", 0], accumulate=True),
        "show": of_class("PreviewAny", source=["end", 0]),
    }
    assert looping.shown(continued) == ["8", "9", "10"]


def test_a_loop_within_a_loop_runs_whole_in_each_iteration(looping: Looping) -> None:
    nested = {
        "outer": start(2, initial_iteration_value=["first", 0]),
        "first": of_class("PrimitiveInt", value=0),
        "inner": start(3, parent_iteration=["outer", 0], initial_iteration_value=["outer", 4]),
        "add": of_class("Add", a=["inner", 4], b=1),
        "inner_end": of_class("EndLoop", output_value=["add", 0], next_iteration_value=["add", 0], accumulate=False),
        "outer_end": of_class(
            "EndLoop", output_value=["inner_end", 0], next_iteration_value=["inner_end", 0], accumulate=True
        ),
        "show": of_class("PreviewAny", source=["outer_end", 0]),
    }
    assert looping.shown(nested) == ["3", "6"]
    assert [a for a, _ in looping.added] == [0, 1, 2, 3, 4, 5]


def test_a_loop_of_no_iterations_makes_an_empty_list(looping: Looping) -> None:
    loop = summing(0, accumulate=True)
    loop["show"] = of_class("PreviewAny", source=["both", 0])
    loop["n"] = of_class("PrimitiveInt", value=1)
    loop["both"] = of_class("CreateList", **{"inputs.input0": ["end", 0], "inputs.input1": ["n", 0]})
    assert looping.shown(loop) == ["1"] and looping.added == []


def test_an_output_within_a_loop_runs_in_each_iteration_and_shows_each_time(looping: Looping) -> None:
    noted = {
        "start": start(3),
        "note": of_class("Note", value=["start", 0]),
        "end": of_class("EndLoop", accumulate=False, **{"terminations.termination0": ["note", 0]}),
    }
    result = looping.run(noted)
    assert result.status == "success"
    assert sorted(shown["text"][0] for shown in result.outputs.values()) == ["0", "1", "2"]
    assert {meta["display_node"] for meta in result.meta.values()} == {"note"}
    assert {meta["real_node_id"] for meta in result.meta.values()} == {"note"}


def test_cached_iterations_do_not_run_again(looping: Looping) -> None:
    assert looping.shown(summing(3, cached=True, accumulate=True)) == ["10", "11", "13"]
    assert looping.shown(summing(3, cached=True, accumulate=False)) == ["13"] and looping.added == []
    assert looping.shown(summing(5, cached=True)) == ["20"]
    assert looping.added[-2:] == [(3, 13), (4, 16)] and len(looping.added) == 3  # the third is not the last any more


def test_a_changed_body_runs_again(looping: Looping) -> None:
    assert looping.shown(summing(2, cached=True)) == ["11"]
    changed = summing(2, cached=True)
    changed["first"] = of_class("PrimitiveInt", value=20)
    assert looping.shown(changed) == ["21"]


def test_without_the_cache_all_iterations_run_in_each_run(looping: Looping) -> None:
    for _ in range(2):
        assert looping.shown(summing(2)) == ["11"]
        assert len(looping.added) == 2


def test_progress_is_shown_with_the_start(looping: Looping) -> None:
    told: Told = []
    looping.run(summing(3), told)
    shown = [(event.node.display_node_id, event.text) for event in told if isinstance(event, NodeText)]
    assert shown == [("start", f"Iteration {number} / 3") for number in range(4)]


def test_a_failure_names_the_node_of_the_body(looping: Looping) -> None:
    told: Told = []
    assert looping.run(summing(note="fail"), told).status == "error"
    (failed,) = [event for event in told if isinstance(event, RunFailed)]
    assert (failed.node_id, failed.class_type) == ("add", "Add")
    assert len(looping.added) == 3


def test_a_loop_can_be_cancelled_between_iterations(looping: Looping) -> None:
    def interrupt() -> None:
        if len(looping.added) == 3:
            looping.engine.interrupt("p")

    looping.when_added = interrupt
    try:
        assert looping.run(summing(100)).status == "interrupted"
    finally:
        looping.when_added = lambda: None
    assert len(looping.added) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": start(1001, initial_iteration_value=["first", 0])}, "has 1001 iterations; expected at most 1000"),
        ({"show": of_class("PreviewAny", source=["add", 0])}, "without passing through End Loop end"),
        ({"start": of_class("PrimitiveInt", value=1), "add": of_class("Add", a=1, b=1)}, "closes no Start Loop"),
        (
            {
                "other": start(2),
                "more": of_class("Add", a=["add", 0], b=["other", 0]),
                "end": of_class("EndLoop", output_value=["more", 0], accumulate=False),
            },
            "could close several Start Loops: other, start",
        ),
        ({"end": of_class("EndLoop", output_value=["add", 0], accumulate=["start", 1])}, "depends on node start"),
    ],
)
def test_a_loop_that_cannot_run_is_refused_before(looping: Looping, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PromptRejected) as refused:
        looping.engine.check(summing() | changes)
    told = [problem for item in refused.value.node_problems.values() for problem in item.problems]
    assert any(words in problem.message for problem in told)


@pytest.mark.parametrize("mode", ["simple", "For"])
def test_a_count_that_a_link_gives_is_limited_too(looping: Looping, mode: str) -> None:
    told: Told = []
    loop = summing(["count", 0]) | {"count": of_class("PrimitiveInt", value=2**62)}
    if mode == "For":
        counted = {"mode.start_iteration_index": -5, "mode.max_iteration": ["count", 0], "mode.step": 1}
        loop["start"] = of_class("StartLoop", mode="For", cache_iterations=False, **counted)
        loop["add"]["inputs"]["b"] = 0
    assert looping.run(loop, told).status == "error"
    (failed,) = [event for event in told if isinstance(event, RunFailed)]
    assert failed.node_id == "start" and "too many iterations; expected at most 1000" in failed.exception_message


def test_loops_within_loops_have_a_largest_number_of_nodes(looping: Looping) -> None:
    nested = {
        "outer": start(1000),
        "inner": start(1000, parent_iteration=["outer", 0]),
        "add": of_class("Add", a=["inner", 0], b=1),
        "inner_end": of_class("EndLoop", output_value=["add", 0], accumulate=False),
        "outer_end": of_class("EndLoop", output_value=["inner_end", 0], accumulate=False),
        "show": of_class("PreviewAny", source=["outer_end", 0]),
    }
    told: Told = []
    assert looping.run(nested, told).status == "error"
    (failed,) = [event for event in told if isinstance(event, RunFailed)]
    assert "nodes, expected at most 50000" in failed.exception_message
    assert failed.node_id == "outer"  # before an iteration has begun


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_loop_goes_on_in_the_iteration_in_which_an_engine_was_lost(tmp_path: Path, caplog: Any) -> None:
    """Each iteration samples from the latent of the last; the first engine ends in the second of two."""
    prompt = {
        "1": of_class("DarkroomRandomCheckpoint", family="sd15", scale="small", seed=1),
        "2": of_class("CLIPTextEncode", clip=["1", 1], text="a dog"),
        "3": of_class("EmptyLatentImage", width=64, height=64, batch_size=1),
        "s": start(2, initial_iteration_value=["3", 0]),
        "4": of_class("KSampler", model=["1", 0], positive=["2", 0], negative=["2", 0], latent_image=["s", 4],
                      seed=["s", 0], steps=2, cfg=1.0, sampler_name="euler", scheduler="normal", denoise=0.8),
        "e": of_class("EndLoop", output_value=["4", 0], next_iteration_value=["4", 0], accumulate=False),
        "5": of_class("SaveLatent", samples=["e", 0], filename_prefix="latent"),
    }  # fmt: skip

    def sampled(engine: Engine, num_steps: int | None = None) -> tuple[RunResult, int]:
        """Run the loop up to a number of steps; return its result and the steps of all iterations."""
        steps = 0

        def receive(event: Event) -> None:
            nonlocal steps
            if isinstance(event, NodeProgress) and event.node.real_node_id == "4":
                steps += 1
                if steps == num_steps:
                    engine.interrupt("p")

        checked = engine.check(prompt)
        request = RunRequest("p", checked.prompt, checked.outputs, {"checkpoint": "a" * 32})
        return engine.submit(request, receive).result(timeout=120), steps

    def latent(result: RunResult) -> bytes:
        [shown] = result.outputs["5"]["latents"]
        saved: bytes = (tmp_path / "output" / shown["filename"]).read_bytes()
        return saved

    recorded = EngineSettings(
        base_directory=tmp_path, cpu=True, checkpoint_directory=tmp_path / "records", checkpoint_seconds=0.0
    )
    with Engine(recorded) as first:
        lost, _ = sampled(first, num_steps=3)
        assert lost.status == "interrupted"
    with Engine(recorded) as second, caplog.at_level("INFO"):
        resumed, _ = sampled(second)
    told = [record.message for record in caplog.records if record.message.startswith("sampling resumed after")]
    assert len(told) == 2  # the first iteration and the one in which it ended
    with Engine(replace(recorded, checkpoint_directory=None)) as third:
        whole, steps = sampled(third)
    assert steps == 4 and latent(resumed) == latent(whole)
