"""Nodes that make lists and take them apart, in an engine: what comes item by item and what as one value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.events import Event, RunFailed
from darkroom.engine.nodes.library.basic.lists import merge_image_lists
from darkroom.engine.settings import EngineSettings
from tests.contract.graph.declared import node

context: Any = None
WORDS = {
    "1": node("PrimitiveString", value="one"),
    "2": node("PrimitiveString", value="two"),
    "3": node("CreateList", **{"inputs.input0": ["1", 0], "inputs.input1": ["2", 0]}),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=tmp_path_factory.mktemp("lists"), cpu=True)) as running:
        yield running


def run(engine: Engine, prompt: dict[str, Any], events: list[Event]) -> RunResult:
    checked = engine.check(prompt)
    return engine.submit(RunRequest("p", checked.prompt, checked.outputs, {}), events.append).result(timeout=60)


def texts(engine: Engine, nodes: Mapping[str, Any]) -> list[str]:
    """Return the texts that node 9 shows."""
    result = run(engine, WORDS | {"9": node("PreviewAny", source=["8", 0])} | dict(nodes), [])
    assert result.status == "success"
    return list(result.outputs["9"]["text"])


def test_a_list_is_joined_from_values_and_lists(engine: Engine) -> None:
    longer = node("CreateList", **{"inputs.input0": ["3", 0], "inputs.input1": ["2", 0]})
    assert texts(engine, {"8": longer}) == ["one", "two", "two"]


@pytest.mark.parametrize(("index", "word"), [(0, "one"), (1, "two"), (-1, "two"), (-2, "one")])
def test_an_item_is_taken_by_its_index(engine: Engine, index: int, word: str) -> None:
    assert texts(engine, {"8": node("GetItemFromList", list=["3", 0], index=index)}) == [word]


def test_an_item_is_taken_out_of_a_list_that_is_one_value(engine: Engine) -> None:
    array = {"7": node("TextToUppercase", texts=["1", 0]), "8": node("GetItemFromList", list=["7", 0], index=0)}
    assert texts(engine, array) == ["ONE"]


def test_a_single_value_is_a_list_of_one(engine: Engine) -> None:
    number = {"7": node("PrimitiveInt", value=4), "8": node("GetItemFromList", list=["7", 0], index=0)}
    assert texts(engine, number) == ["4"]


def test_an_index_beyond_the_list_is_named(engine: Engine) -> None:
    events: list[Event] = []
    item = {"8": node("GetItemFromList", list=["3", 0], index=2), "9": node("PreviewAny", source=["8", 0])}
    assert run(engine, WORDS | item, events).status == "error"
    (failed,) = [event for event in events if isinstance(event, RunFailed)]
    assert failed.exception_message.startswith("index: no such item; got 2")


def test_batches_become_single_images() -> None:
    merged = merge_image_lists(context, images=[torch.zeros(2, 4, 4, 3), torch.ones(1, 8, 8, 3)])
    assert [tuple(image.shape) for image in merged] == [(1, 4, 4, 3), (1, 4, 4, 3), (1, 8, 8, 3)]
