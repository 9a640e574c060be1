"""Nodes that read JSON and write it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from darkroom.engine.nodes.library.basic.json_texts import (
    build_json_prompt_ideogram,
    convert_array_to_string,
    convert_dictionary_to_string,
    json_extract_string,
)

context: Any = None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": "x"}', "x"), ('{"a": 1.50}', "1.5"), ('{"a": null}', ""), ('{"b": 1}', ""), ("[1]", ""), ("no", ""),
        ('{"a": [1, true]}', "[1, True]"), ("[" * 100_000, ""), ('{"a":' * 5000, ""), ('{"a": ' + "9" * 5000 + "}", ""),
    ],
)  # fmt: skip
def test_a_value_is_taken_out_of_an_object_or_nothing(text: str, expected: str) -> None:
    assert json_extract_string(context, json_string=text, key="a") == expected


@pytest.mark.parametrize("indent", [0, 2, 5])
def test_values_are_written_as_json_does(indent: int) -> None:
    value = {"name": "ü", "list": [1, None, {"a": True}], "empty": []}
    expected = json.dumps(value, ensure_ascii=False, indent=indent or None)
    assert convert_dictionary_to_string(context, dictionary=value, indent=indent) == expected
    assert convert_array_to_string(context, array=[value], indent=indent) == json.dumps(
        [value], ensure_ascii=False, indent=indent or None
    )


def test_what_json_cannot_represent_is_refused() -> None:
    with pytest.raises(TypeError):
        convert_array_to_string(context, array=[object()])


def test_a_prompt_has_its_style_by_kind_and_its_colours_in_capitals() -> None:
    described = {"background": "snow", "aesthetics": "calm", "medium": "ink"}
    given: dict[str, Any] = {"element": [{"desc": "a fox"}], **described}
    plain = build_json_prompt_ideogram(context, **given, style={"style": "none"}, color_palette=["#ff0000"])
    assert plain == {"compositional_deconstruction": {"background": "snow", "elements": [{"desc": "a fox"}]}}
    drawn = build_json_prompt_ideogram(
        context, **given, style={"style": "art_style", "art_style": "flat"}, color_palette=["#ff0000", ""]
    )
    assert drawn["style_description"] == {
        "aesthetics": "calm", "lighting": "", "medium": "ink", "art_style": "flat", "color_palette": ["#FF0000"],
    }  # fmt: skip
