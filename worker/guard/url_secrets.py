"""Removal of credentials in URLs: user and password before the host, signatures and tokens in the query. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

ERASED_QUERY = "?erased"
ERASED_USER = "erased@"
ERASED_TEXT = "(erased)"
"""Placeholders for removed secrets, which show that the URL had one and cannot be used again."""

MAX_URLS = 100_000

# Of the scheme the last character is enough: a search for its start costs the square of a text's length.
_URL = re.compile(
    r"(?P<scheme>[a-zA-Z0-9+.-]://)(?P<user>[^\s/?#\"'<>]*@)?(?P<place>[^\s?#\"'<>]*)(?P<query>[?#][^\s\"'<>]*)?"
)


def has_url_secrets(value: object) -> bool:
    """Return True if any string within a JSON value contains a URL with a user, a query or a fragment."""
    eraser = _Eraser()
    return any(eraser.text(text) != text for text in _strings(value))


def without_url_secrets(value: Any) -> Any:
    """Copy a JSON value with user, query and fragment of every URL erased. Other strings are unchanged.

    Of a value with more than MAX_URLS the strings after these are erased whole if they have a URL.
    """
    return _Eraser().copy(value)


class _Eraser:
    """Erasure in one JSON value, whose cost is bounded by the number of URLs that are looked at."""

    def __init__(self) -> None:
        self._num_left = MAX_URLS

    def copy(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.copy(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item) for item in value]
        return value

    def text(self, text: str) -> str:
        num_urls = text.count("://")
        if not num_urls:
            return text
        if num_urls > self._num_left:
            return ERASED_TEXT
        self._num_left -= num_urls
        return _URL.sub(_erase, text)


def is_erased(url: str) -> bool:
    """Return True if `without_url_secrets` has erased a part of a URL."""
    return "://" + ERASED_USER in url or url.endswith(ERASED_QUERY)


def _erase(found: re.Match[str]) -> str:
    user = ERASED_USER if found["user"] else ""
    query = ERASED_QUERY if found["query"] else ""
    return found["scheme"] + user + found["place"] + query


def _strings(value: object) -> Iterator[str]:
    """Yield the strings of a JSON value without recursion, because a prompt may be deeply nested."""
    held = [value]
    while held:
        item = held.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            held.extend(item.values())
        elif isinstance(item, list | tuple):
            held.extend(item)
