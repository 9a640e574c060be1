"""JSON with very long strings in it, such as images in base64, read and written without blocking other threads.

The library's reader and writer process a string in one call and block other threads meanwhile: 0.1 and 0.2 s for the
76 MiB that a request may have. Here long strings are cut out and processed in pieces, and the rest is left to the
library. The result is the same.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring_ascii
from typing import Any

LONG_LENGTH = 64 * 1024
PIECE_LENGTH = 1024 * 1024
MIN_MEAN_LENGTH = 1024  # of the text between two quotes; below it, examining each costs more than it saves
CONTROL_CHARACTERS = bytes(range(32))


def loads(
    body: bytes | bytearray,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], float] | None = None,
    parse_int: Callable[[str], int] | None = None,
) -> Any:
    """Parse like `json.loads`, but refuse half a surrogate pair, which nothing could store.

    Raises ValueError, RecursionError.
    """
    if len(body) <= LONG_LENGTH or body.count(b'"') * MIN_MEAN_LENGTH > len(body):
        return _loads(body, parse_constant, parse_float, parse_int)
    mark, rest, held, done = uuid.uuid4().hex, bytearray(), list[str](), 0
    for start, end in _long_strings(body):
        rest += body[done:start] + f"{mark}{len(held)}".encode()
        held.append(_decoded(body, start, end))
        done = end
    rest += body[done:]
    value = _loads(rest, parse_constant, parse_float, parse_int)
    return _with_held(value, mark, held) if held else value


def _loads(
    body: bytes | bytearray,
    parse_constant: Callable[[str], object] | None,
    parse_float: Callable[[str], float] | None,
    parse_int: Callable[[str], int] | None,
) -> object:
    value = json.loads(body, parse_constant=parse_constant, parse_float=parse_float, parse_int=parse_int)
    if b"\\u" in body:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def canonical_pieces(value: object, encoder: json.JSONEncoder) -> Iterator[bytes]:
    """Yield the output of `encoder`, one that writes ASCII, for a JSON value."""
    mark, held = uuid.uuid4().hex, list[str]()
    for piece in encoder.iterencode(_without_long(value, mark, held)):
        before, found, number = piece.partition(mark)
        if not found:
            yield piece.encode()
            continue
        digits = number[: number.index('"')]
        yield before.encode()
        text = held[int(digits)]
        for start in range(0, len(text), PIECE_LENGTH):
            yield encode_basestring_ascii(text[start : start + PIECE_LENGTH])[1:-1].encode()
        yield number[len(digits) :].encode()


def _long_strings(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the long strings without any backslash, quotes not counted."""
    start = body.find(b'"')
    while start >= 0:
        end = body.find(b'"', start + 1)
        while end >= 0 and _is_escaped(body, start, end):
            end = body.find(b'"', end + 1)
        if end < 0:
            return
        if end - start > LONG_LENGTH and body.find(b"\\", start, end) < 0:
            yield start + 1, end
        start = body.find(b'"', end + 1)


def _is_escaped(body: bytes | bytearray, start: int, end: int) -> bool:
    first = end
    while first - 1 > start and body[first - 1] == ord("\\"):
        first -= 1
    return (end - first) % 2 == 1


def _decoded(body: bytes | bytearray, start: int, end: int) -> str:
    for begin in range(start, end, PIECE_LENGTH):
        piece = body[begin : min(begin + PIECE_LENGTH, end)]
        if len(piece.translate(None, CONTROL_CHARACTERS)) < len(piece):
            raise ValueError("Invalid control character")
    with memoryview(body) as whole, whole[start:end] as text:
        return str(text, "utf-8")


def _with_held(value: object, mark: str, held: list[str]) -> object:
    if isinstance(value, dict):
        return {_with_held(key, mark, held): _with_held(item, mark, held) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_held(item, mark, held) for item in value]
    if isinstance(value, str) and value.startswith(mark):
        return held[int(value.removeprefix(mark))]
    return value


def _without_long(value: object, mark: str, held: list[str]) -> object:
    if isinstance(value, dict):
        return {key: _without_long(item, mark, held) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_long(item, mark, held) for item in value]
    if isinstance(value, str) and len(value) > LONG_LENGTH:
        held.append(value)
        return f"{mark}{len(held) - 1}"
    return value
