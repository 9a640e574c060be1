"""Limits on the structure of a JSON text, checked by a scan of its bytes before it is parsed. Pure.

A parser creates an object for each element and holds the GIL meanwhile: 28 MiB of `[],[],` block the event loop for
many seconds. The scan takes chunks as they arrive. It skips strings and counts brackets and commas, with functions of
`bytes` only. It does not check that the text is JSON. In invalid JSON the parser stops at the first wrong byte, and the
counts are right up to that byte.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import accumulate
from typing import Final

from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.settings.listener import JsonLimits

MAX_WIDE_STRING_BYTES: Final = 8 * 1024 * 1024
"""The length above which a string must be ASCII, as base64 is.

One other character makes Python store four bytes for every character of the string.
"""

FED_BYTES: Final = 256 * 1024
FILE_FIELD: Final = "input.workflow_json"

_OPENING: Final = b"[{"
_CLOSING: Final = b"]}"
_STEPS: Final = bytes(1 if byte in _OPENING else 255 for byte in range(256))  # +1 and -1 as signed bytes
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _OPENING + _CLOSING)


class JsonScan:
    """Running counts for one JSON text."""

    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        self._num_elements = 1
        self._depth = 0
        self._is_in_string = False
        self._string_bytes = 0
        self._is_ascii = True
        self._carried = b""

    @property
    def num_elements(self) -> int:
        """The number of values so far, without commas inside strings."""
        return self._num_elements

    @property
    def limits(self) -> JsonLimits:
        return self._limits

    def set_limits(self, limits: JsonLimits) -> None:
        """Replace the limits from the next chunk on."""
        self._limits = limits

    def feed(self, chunk: bytes | bytearray) -> None:
        """Count the next bytes of the text. Raises RequestRejected at the first limit that is exceeded."""
        text = self._carried + chunk if self._carried else chunk
        self._carried = b""
        if b"\\" in text:
            text = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
            if text.endswith(b"\\"):  # the character it escapes is in the next chunk
                text, self._carried = text[:-1], b"\\"
        parts = text.split(b'"')  # every second part is a string, or the half of one at either end
        first_plain = 1 if self._is_in_string else 0
        if self._is_in_string:
            self._lengthen_string(parts[0])
        if len(text) > min(self._limits.max_string_bytes, MAX_WIDE_STRING_BYTES):
            for part in parts[1 - first_plain :: 2]:
                self._check_string(len(part), len(part) <= MAX_WIDE_STRING_BYTES or part.isascii())
        if len(parts) > 1:
            self._is_in_string = (len(parts) - first_plain) % 2 == 0
            self._string_bytes, self._is_ascii = 0, True
            if self._is_in_string:
                self._lengthen_string(parts[-1])
        self._count(b"".join(parts[first_plain::2]))

    def _lengthen_string(self, part: bytes | bytearray) -> None:
        """Add bytes to the string that continues across chunks."""
        self._string_bytes += len(part)
        self._is_ascii = self._is_ascii and part.isascii()
        self._check_string(self._string_bytes, self._is_ascii)

    def _check_string(self, num_bytes: int, is_ascii: bool) -> None:
        """Check a string, or the part of it that has arrived."""
        limit = self._limits.max_string_bytes
        if num_bytes > limit:
            raise _too_much("json_string_too_long", "a string is too long", "bytes", num_bytes, limit)
        if num_bytes > MAX_WIDE_STRING_BYTES and not is_ascii:
            message = "a string with other characters than ASCII is too long"
            raise _too_much("json_string_too_long", message, "bytes", num_bytes, MAX_WIDE_STRING_BYTES)

    def _count(self, plain: bytes | bytearray) -> None:
        num_opened = plain.count(b"[") + plain.count(b"{")
        self._num_elements += plain.count(b",") + num_opened
        if self._num_elements > self._limits.max_elements:
            limit = self._limits.max_elements
            raise _too_much("json_too_large", "the JSON has too many elements", "elements", self._num_elements, limit)
        if self._depth + num_opened > self._limits.max_depth:
            self._check_depth(plain)
        self._depth += num_opened - plain.count(b"]") - plain.count(b"}")

    def _check_depth(self, plain: bytes | bytearray) -> None:
        steps = array("b", bytes(plain).translate(_STEPS, _NO_BRACKETS))
        deepest = max(accumulate(steps, initial=self._depth))
        if deepest > self._limits.max_depth:
            limit = self._limits.max_depth
            raise _too_much("json_too_deep", "the JSON is nested too deeply", "levels", deepest, limit)


class FoundJson:
    """The JSON texts in the files of one request: together they may have the elements that a body may have."""

    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        self._num_elements = 0

    @property
    def limits(self) -> JsonLimits:
        """Limits of one text."""
        return self._limits

    def check(self, text: bytes) -> None:
        """Count the structure of a text before it is parsed. Raises RequestRejected at a limit."""
        left = max(0, self._limits.max_elements - self._num_elements)
        scan = JsonScan(self._limits.model_copy(update={"max_elements": left}))
        try:
            for start in range(0, len(text), FED_BYTES):
                scan.feed(text[start : start + FED_BYTES])
        except RequestRejected as refused:
            problems = [replace(problem, field=FILE_FIELD) for problem in refused.problems]
            raise RequestRejected(problems) from None
        self._num_elements += scan.num_elements


def check_json(text: bytes | bytearray, limits: JsonLimits) -> None:
    """Check a whole JSON text. Raises RequestRejected if it exceeds a limit."""
    JsonScan(limits).feed(text)


def _too_much(kind: str, message: str, unit: str, found: int, limit: int) -> RequestRejected:
    """Return the rejection for an exceeded limit.

    `found` is the count when the limit was exceeded; the whole text may have more.
    """
    text = f"{message}; got {found} {unit} or more, expected at most {limit}"
    return RequestRejected(
        [Problem(text, field="body", type=kind, allowed={"maximum": limit}, extra={"received": found})]
    )
