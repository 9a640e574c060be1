"""Nodes that hold a plain value, and the one that shows any value as text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.basic import primitives
from darkroom.engine.nodes.library.basic.patterns import TextTooLong

context: Any = None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (1, "1"),
        (1.5, "1.5"),
        (True, "True"),
        (None, "None"),
        ([1, "ü"], '[\n    1,\n    "ü"\n]'),
        ({"a": 1}, '{\n    "a": 1\n}'),
    ],
)
def test_any_value_is_shown_as_text(value: Any, text: str) -> None:
    shown = primitives.preview_any(context, source=value)
    assert shown.ui == {"text": (text,)} and shown.result == (text,)


def test_a_value_without_json_is_shown_as_python_writes_it() -> None:
    value: list[Any] = [torch.zeros(1)]
    assert primitives.preview_any(context, source=value).ui == {"text": (str(value),)}
    value.append(value)
    assert "..." in primitives.preview_any(context, source=value).ui["text"][0]


@pytest.mark.parametrize("item", ["a", {1, 2}])
def test_lists_that_hold_one_another_many_times_are_refused(item: Any) -> None:
    value: list[Any] = [item]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(TextTooLong):
        primitives.preview_any(context, source=value)


def test_deep_lists_are_shown_as_json() -> None:
    value: list[Any] = []
    for _ in range(500):
        value = [value]
    assert primitives.preview_any(context, source=value).ui["text"][0].count("[") == 501


def test_six_items_of_each_side_of_a_large_tensor_are_shown() -> None:
    text = primitives.preview_any(context, source=torch.arange(5000)).ui["text"][0]
    assert text == "tensor([   0,    1,    2,    3,    4,    5,  ..., 4994, 4995, 4996, 4997, 4998,\n        4999])"
    assert "5," not in str(torch.arange(5000)).split("...")[0]  # how torch prints is not changed


def test_primitives_pass_their_value_on() -> None:
    assert primitives.primitive_int(context, value=-3) == -3
    assert primitives.primitive_float(context, value=1.5) == 1.5
    assert primitives.primitive_string(context, value="a") == "a"
    assert primitives.primitive_string_multiline(context, value="a\nb") == "a\nb"
    assert primitives.primitive_boolean(context, value=False) is False
