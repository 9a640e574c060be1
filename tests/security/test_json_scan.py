"""The scan of a JSON text counts what a parser would make, wherever the text is cut into chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.worker.errors import RequestRejected
from darkroom.worker.guard.json_scan import MAX_WIDE_STRING_BYTES, JsonScan, check_json
from darkroom.worker.settings.listener import JsonLimits


def limits(depth: int = 10**9, elements: int = 10**9, string_bytes: int = 10**9) -> JsonLimits:
    """Limits beyond the bounds of the settings, too."""
    return JsonLimits.model_construct(max_depth=depth, max_elements=elements, max_string_bytes=string_bytes)


NO_LIMITS = limits()
TEXTS = st.text(max_size=8) | st.sampled_from(["[", "]}", "{,", '"', "\\", '\\"', '\\\\"', ",,,", 'a\\"[b'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def elements_of(value: Any) -> int:
    """The commas and brackets outside of strings, and one."""
    if isinstance(value, dict | list):
        items = list(value.values() if isinstance(value, dict) else value)
        return 1 + max(0, len(items) - 1) + sum(elements_of(item) - 1 for item in items) + 1
    return 1


def longest_in(value: Any, is_ascii: bool) -> int:
    found = [len(json.dumps(value, ensure_ascii=is_ascii).encode()) - 2] if isinstance(value, str) else [0]
    if isinstance(value, dict):
        found += [longest_in(item, is_ascii) for pair in value.items() for item in pair]
    if isinstance(value, list):
        found += [longest_in(item, is_ascii) for item in value]
    return max(found)


@given(VALUES, st.booleans(), st.integers(1, 12))
def test_counts_are_those_of_the_value(value: Any, is_ascii: bool, chunk_bytes: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")

    def scan(limits: JsonLimits) -> int:
        scan = JsonScan(limits)
        for start in range(0, len(text), chunk_bytes):
            scan.feed(text[start : start + chunk_bytes])
        return scan.num_elements

    assert scan(NO_LIMITS) == elements_of(value)
    deepest, longest = depth_of(value), longest_in(value, is_ascii)
    scan(limits(deepest, elements_of(value), longest))
    if deepest:
        with pytest.raises(RequestRejected, match="nested too deeply"):
            scan(limits(depth=deepest - 1))
    if longest:
        with pytest.raises(RequestRejected, match="string is too long"):
            scan(limits(string_bytes=longest - 1))
    if elements_of(value) > 1:
        with pytest.raises(RequestRejected, match="too many elements"):
            scan(limits(elements=elements_of(value) - 1))


@given(st.binary(max_size=60), st.integers(1, 7))
def test_no_bytes_break_the_scan(text: bytes, chunk_bytes: int) -> None:
    scan = JsonScan(NO_LIMITS)
    for start in range(0, len(text), chunk_bytes):
        scan.feed(text[start : start + chunk_bytes])


def test_long_text_of_other_characters_than_ascii_is_refused() -> None:
    """One of them makes four bytes of each."""
    plain = b'["' + b"a" * (MAX_WIDE_STRING_BYTES + 10) + b'"]'
    check_json(plain, NO_LIMITS)
    with pytest.raises(RequestRejected, match="ASCII"):
        check_json(plain.replace(b'["', '["😀'.encode()), NO_LIMITS)
