"""JSON of many megabytes is read and written as the library does it, without holding up the loop."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.worker.json import long as long_json
from darkroom.worker.storage.job import CANONICAL

TEXTS = st.text(max_size=8) | st.sampled_from(["", '"', "\\", '\\"', "ä€😀", "a" * 20, 'b\\"' * 9, "é" * 11, "\n" * 12])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(autouse=True, scope="module")
def _short_is_long() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "LONG_LENGTH", 5)
        patch.setattr(long_json, "PIECE_LENGTH", 3)
        patch.setattr(long_json, "MIN_MEAN_LENGTH", 0)
        yield


@given(VALUES, st.booleans())
def test_what_is_read_is_what_the_library_reads(value: Any, is_ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    try:
        expected = json.loads(body)
        json.dumps(expected, ensure_ascii=False).encode()
    except ValueError:
        with pytest.raises(ValueError):
            long_json.loads(body)
        return
    assert long_json.loads(body) == expected == long_json.loads(bytearray(body))


@given(VALUES)
def test_what_is_written_is_what_the_library_writes(value: Any) -> None:
    assert b"".join(long_json.canonical_pieces(value, CANONICAL)) == CANONICAL.encode(value).encode()


@given(VALUES, st.integers(0, 200), st.binary(max_size=2))
def test_a_broken_body_is_refused_as_the_library_refuses_it(value: Any, place: int, damage: bytes) -> None:
    body = bytearray(json.dumps(value).encode())
    body[place : place + 1] = damage
    try:
        expected = json.loads(body.decode())
        json.dumps(expected, ensure_ascii=False).encode()
    except ValueError:
        with pytest.raises(ValueError):
            long_json.loads(body)
        return
    assert long_json.loads(body) == expected


def test_a_number_that_is_none_is_reported() -> None:
    def refuse(name: str) -> None:
        raise ValueError(name)

    with pytest.raises(ValueError, match="NaN"):
        long_json.loads(b'["aaaaaaaaaaaa", NaN]', parse_constant=refuse)
