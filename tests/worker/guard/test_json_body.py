"""The JSON object of a body, in the forms in which clients send it, and names of what is none."""

from __future__ import annotations

import pytest

from darkroom.worker.errors import RequestRejected
from darkroom.worker.guard.json_body import parse_json
from darkroom.worker.settings.listener import JsonLimits


@pytest.mark.parametrize("body", [b'{"a": 1}', b'"{\\"a\\": 1}"', b'[{"a": 1}]', b'\xef\xbb\xbf{"a": 1}'])
def test_an_object_may_be_encoded_twice_or_the_one_item_of_a_list(body: bytes) -> None:
    assert parse_json(body) == {"a": 1}


@pytest.mark.parametrize(
    ("body", "named"), [(b"null", "null"), (b"true", "true or false"), (b"1e3", "a number"), (b"[]", "a list")]
)
def test_what_is_no_object_is_named(body: bytes, named: str) -> None:
    with pytest.raises(RequestRejected, match=f"must be a JSON object; got {named}$"):
        parse_json(body)


def test_an_object_in_a_text_is_held_to_the_limits_of_a_body() -> None:
    with pytest.raises(RequestRejected) as raised:
        parse_json(b'"{\\"a\\": [1, 2, 3, 4]}"', JsonLimits(max_elements=3))
    assert raised.value.problems[0].type == "json_too_large"


@pytest.mark.parametrize("body", [b'{"a": %s}', b'"{\\"a\\": %s}"', b'{"a": "' + b"x" * 100_000 + b'", "b": %s}'])
def test_a_number_of_many_digits_is_refused_wherever_it_is(body: bytes) -> None:
    assert parse_json(body % (b"9" * 400))
    with pytest.raises(RequestRejected, match="a number is too large; got 9{40}... of 401 characters"):
        parse_json(body % (b"9" * 401))
