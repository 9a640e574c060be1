"""Paths of addresses in the form in which they are compared, so that a credential for one folder stays in it. Pure.

Servers, and proxies before them, resolve `..` and decode `%2e` each in their own way. So a path that any of them could
read as another one is not compared at all: it is in no folder.
"""

from __future__ import annotations

from urllib.parse import unquote

MAX_DECODINGS = 4


def plain_path(path: str) -> str | None:
    """Return a path as every server reads it; None for one with dot segments, empty parts or backslashes.

    >>> plain_path("/mine/a%20b"), plain_path("/mine/%2e%2e/other"), plain_path("")
    ('/mine/a b', None, '/')
    """
    decoded = path or "/"
    for _ in range(MAX_DECODINGS):
        if _is_ambiguous(decoded):
            return None
        before, decoded = decoded, unquote(decoded)
        if decoded == before:
            break
    return None if decoded != unquote(decoded) or _is_ambiguous(decoded) else unquote(path or "/")


def is_below(path: str, folder: str) -> bool:
    """Return True if a path begins as another one does, both as every server reads them."""
    found, expected = plain_path(path), plain_path(folder)
    return found is not None and expected is not None and found.startswith(expected)


def _is_ambiguous(path: str) -> bool:
    parts = path.split("/")
    inner = parts[1:-1] if path.startswith("/") else parts[:-1]
    has_dots = any(part.partition(";")[0] in (".", "..") for part in parts)
    return has_dots or "" in inner or "\\" in path or any(not letter.isprintable() for letter in path)
