"""Classes in ComfyUI's form run unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.contract.graph.validate import find_problems
from darkroom.engine.nodes.catalogue import object_info
from darkroom.engine.nodes.legacy_node import ClassNode
from tests.contract.graph.declared import node
from tests.engine.runtime.runs import Bench, NoFiles


class Counter:
    """Keeps a count of its calls for as long as prompts name it."""

    INPUT_TYPES = classmethod(
        lambda cls: {"required": {"start": ("INT", {"default": 1, "min": 0})}, "hidden": {"id": "UNIQUE_ID"}}
    )
    RETURN_TYPES = ("INT", "STRING")
    RETURN_NAMES = ("count",)
    FUNCTION = "work"
    CATEGORY = "test"

    def __init__(self) -> None:
        self.calls = 0

    def work(self, start: int, id: str) -> tuple[int, str]:
        self.calls += 1
        return start + self.calls, id

    @classmethod
    def IS_CHANGED(cls, start: int, **kwargs: Any) -> float:
        return float("nan")


class Show:
    INPUT_TYPES = classmethod(lambda cls: {"required": {"value": ("*",)}, "optional": {"note": ("STRING", {})}})
    RETURN_TYPES = ()
    FUNCTION = "show"
    OUTPUT_NODE = True
    INPUT_IS_LIST = True

    def show(self, value: list[Any], note: list[str] | None = None) -> dict[str, Any]:
        return {"ui": {"values": list(value)}}


class Picky:
    INPUT_TYPES = classmethod(lambda cls: {"required": {"value": ("INT", {"max": 1})}})
    RETURN_TYPES = ("INT",)
    FUNCTION = "go"

    def go(self, value: int) -> tuple[int]:
        return (value,)

    @classmethod
    async def VALIDATE_INPUTS(cls, value: int) -> bool | str:
        return True if value < 5 else "five or more"


class Switch:
    INPUT_TYPES = classmethod(
        lambda cls: {"required": {"on": ("BOOLEAN",), "a": ("INT", {"lazy": True}), "b": ("INT", {"lazy": True})}}
    )
    RETURN_TYPES = ("INT",)
    FUNCTION = "go"

    def check_lazy_status(self, on: bool, a: int | None, b: int | None) -> list[str]:
        return ["a"] if on else ["b"]

    def go(self, on: bool, a: int | None, b: int | None) -> tuple[int | None]:
        return (a if on else b,)


CLASSES = tuple(ClassNode(kind.__name__, kind) for kind in (Counter, Show, Picky, Switch))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, CLASSES)


def test_a_node_keeps_its_state_while_prompts_name_it(bench: Bench) -> None:
    prompt = {"1": node("Counter", start=0), "2": node("Show", value=["1", 0])}
    assert [bench.run(prompt, "2").outputs["2"]["values"] for _ in range(3)] == [[1], [2], [3]]
    bench.run({"2": node("Show", value=1)}, "2")
    assert bench.run(prompt, "2").outputs["2"]["values"] == [1]


def test_check_lazy_status_says_what_is_needed(bench: Bench) -> None:
    prompt = {
        "1": node("Counter", start=10),
        "2": node("Counter", start=20),
        "3": node("Switch", on=False, a=["1", 0], b=["2", 0]),
        "4": node("Show", value=["3", 0]),
    }
    assert bench.run(prompt, "4").outputs["4"]["values"] == [21]
    assert not any(story.endswith(" 1") for story in bench.story())


def test_validate_inputs_may_be_async_and_replaces_the_range() -> None:
    rules = {item.class_type: item.rules(NoFiles()) for item in CLASSES}
    prompt = {"1": node("Picky", value=3), "2": node("Show", value=["1", 0])}
    assert find_problems(prompt, rules.get).node_problems == {}
    prompt["1"] = node("Picky", value=6)
    assert find_problems(prompt, rules.get).node_problems["1"].problems[0].details == "value - five or more"


def test_the_declaration_reads_like_comfyuis() -> None:
    info = object_info(CLASSES[0].spec(NoFiles()))
    assert info["input"] == {"required": {"start": ["INT", {"default": 1, "min": 0}]}, "hidden": {"id": "UNIQUE_ID"}}
    assert info["input_order"] == {"required": ["start"], "hidden": ["id"]}
    assert (info["output"], info["output_name"]) == (["INT", "STRING"], ["count", "STRING"])
    assert info["output_node"] is False


def test_hidden_inputs_keep_their_options() -> None:
    class Sized:
        INPUT_TYPES = classmethod(lambda cls: {"required": {}, "hidden": {"size": ("MYAUTOSIZE", {"padding": 0})}})
        RETURN_TYPES = ()
        FUNCTION = "run"

    info = object_info(ClassNode("Sized", Sized).spec(NoFiles()))
    assert info["input"]["hidden"] == {"size": ["MYAUTOSIZE", {"padding": 0}]}
