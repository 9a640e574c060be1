"""Nodes that change captions: values compared with ComfyUI's are in the parity cases; here their limits."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.engine.nodes.library.basic import text_changes
from darkroom.engine.nodes.library.basic.patterns import MAX_TEXT_CHARACTERS, TextTooLong

context: Any = None


def test_one_node_takes_what_another_made() -> None:
    (made,) = text_changes.text_to_uppercase(context, texts="a fox")
    assert made == ["A FOX"]
    assert text_changes.add_text_suffix(context, texts=made, suffix="!") == (["A FOX!"],)


@pytest.mark.parametrize("value", [["a", "b"], 3, [3]])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="^texts: no text"):
        text_changes.strip_whitespace(context, texts=value)


def test_a_text_that_would_grow_without_end_is_refused() -> None:
    with pytest.raises(TextTooLong):
        text_changes.replace_text(context, texts="a" * 10_000, find="", replace="b" * 10_000)
    with pytest.raises(TextTooLong):
        text_changes.add_text_prefix(context, texts="a" * MAX_TEXT_CHARACTERS, prefix="b")
