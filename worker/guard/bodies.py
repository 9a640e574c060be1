"""Request bodies: bounded while they are read, by size, structure and the sum of all; parsed off the event loop.

No body is read for a caller whose headers are refused. A caller that may still prove its identity by the signature
within the body (Vast's envelope) is unknown until then, and gets a small size limit. An envelope that begins with its
signature is verified early and may be as large as any other body.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Final

from fastapi import Request

from darkroom.worker.errors import MemoryLow, Problem, RequestRejected, RequestTooLarge
from darkroom.worker.guard.json_body import parse_json
from darkroom.worker.guard.json_scan import JsonScan
from darkroom.worker.settings.listener import BodyLimits, JsonLimits

LARGE_BODY_BYTES: Final = 256 * 1024
UNKNOWN_ELEMENTS: Final = 50_000
PIECE_BYTES: Final = 256 * 1024
MAX_LENGTH_DIGITS: Final = 15
JSON_STARTS: Final = frozenset(bytes([byte]) for byte in b'{["0123456789tfn \t\r\n' + b"\x00\xef\xfe\xff") | {b""}
"""First bytes of JSON texts, in UTF-16 and UTF-32 and behind a byte order mark, too."""
JPEG_START: Final = b"\xff\xd8\xff"
UNKNOWN_SHARE: Final = 8
"""Share of the memory for bodies that unknown callers get: an eighth, so that they cannot block others."""


class Sender:
    """Caller of one request, as far as reading its body requires it. A known caller may send large bodies."""

    def __init__(self, *, is_known: bool) -> None:
        self._is_known = is_known

    @property
    def is_known(self) -> bool:
        return self._is_known

    def identify(self) -> None:
        """Record that the caller is known."""
        self._is_known = True

    def prove(self, start: bytes | bytearray) -> bool:
        """Try to identify the caller from the start of the body. Return True once the caller is known.

        Raises Unauthorized for a proof that is wrong.
        """
        return self._is_known


class Lease:
    """Memory that the body of one request holds; released by `BodyMemory.lease`."""

    def __init__(self, memory: BodyMemory, sender: Sender) -> None:
        self._memory = memory
        self.sender = sender
        self.num_bytes = 0
        self.is_of_known = sender.is_known

    def grow(self, num_bytes: int) -> None:
        """Reserve more memory. Raises MemoryLow."""
        self._memory.take(self, num_bytes)


class BodyMemory:
    """Sum of all bodies in memory, with a small share of it for those of unknown callers."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_unknown_bytes = 0

    @property
    def num_unknown_bytes_left(self) -> int:
        """Bytes that the bodies of unknown callers may still use."""
        return self._max_bytes // UNKNOWN_SHARE - self._num_unknown_bytes

    @contextlib.contextmanager
    def lease(self, sender: Sender) -> Iterator[Lease]:
        """Reserve memory for a body as long as the block lasts."""
        lease = Lease(self, sender)
        try:
            yield lease
        finally:
            self._num_bytes -= lease.num_bytes
            if not lease.is_of_known:
                self._num_unknown_bytes -= lease.num_bytes

    def take(self, lease: Lease, num_bytes: int) -> None:
        """Add bytes to a lease. Raises MemoryLow."""
        if lease.sender.is_known and not lease.is_of_known:
            self._num_unknown_bytes -= lease.num_bytes
            lease.is_of_known = True
        share = self._max_bytes if lease.is_of_known else self._max_bytes // UNKNOWN_SHARE
        held = self._num_bytes if lease.is_of_known else self._num_unknown_bytes
        if held and held + num_bytes > share:  # a single body is always accepted: its own size limit applies
            message = f"request bodies: too many at once; got {held + num_bytes} bytes, expected at most {share}"
            raise MemoryLow(message, retry_after_seconds=2)
        lease.num_bytes += num_bytes
        self._num_bytes += num_bytes
        if not lease.is_of_known:
            self._num_unknown_bytes += num_bytes


class Bodies:
    """Reader and parser of request bodies. Large ones are parsed one at a time."""

    def __init__(self, limits: BodyLimits, structure: JsonLimits) -> None:
        self.limits = limits
        self.structure = structure
        self.memory = BodyMemory(limits.max_pending_bytes)
        self._parsing = asyncio.Lock()

    def max_bytes(self, sender: Sender) -> int:
        """Return the largest body of this caller, in bytes."""
        return self.limits.max_bytes if sender.is_known else min(self.limits.max_unknown_bytes, self.limits.max_bytes)

    def json_limits(self, sender: Sender) -> JsonLimits:
        """Return the limits on the structure of this caller's JSON."""
        if sender.is_known:
            return self.structure
        num_elements = min(self.structure.max_elements, UNKNOWN_ELEMENTS)
        return self.structure.model_copy(update={"max_elements": num_elements})

    async def read(self, request: Request, lease: Lease, max_bytes: int | None = None) -> bytearray:
        """Read the JSON body of a request. Raises RequestTooLarge, RequestRejected, MemoryLow, Unauthorized."""
        sender = lease.sender
        self.check_length(request, max_bytes)
        body, scan = bytearray(), JsonScan(self.json_limits(sender))
        async for chunk in request.stream():
            lease.grow(len(chunk))
            body += chunk
            may_pass_elements = scan.num_elements + len(chunk) > scan.limits.max_elements
            if not sender.is_known and (may_pass_elements or len(body) > self.max_bytes(sender)):
                sender.prove(body)
                scan.set_limits(self.json_limits(sender))
            self.check_size(len(body), sender, max_bytes)
            if len(body) == len(chunk):
                _check_begins_as_json(body, request.headers.get("content-type", ""))
            await _scan_in_pieces(scan, chunk)
        return body

    def check_length(self, request: Request, max_bytes: int | None = None) -> None:
        """Refuse a body whose announced length exceeds the limit of every caller. Raises RequestTooLarge."""
        declared = request.headers.get("content-length", "")
        limit = min(self.limits.max_bytes, max_bytes or self.limits.max_bytes)
        if declared.isascii() and declared.isdigit() and (len(declared) > MAX_LENGTH_DIGITS or int(declared) > limit):
            raise _too_large(declared[:MAX_LENGTH_DIGITS], limit)

    def check_size(self, num_bytes: int, sender: Sender, max_bytes: int | None = None) -> None:
        """Refuse a body that is too long for this caller. Raises RequestTooLarge."""
        limit = min(self.max_bytes(sender), max_bytes or self.limits.max_bytes)
        if num_bytes > limit:
            raise _too_large(num_bytes, limit, "" if sender.is_known else " before its caller is known")

    async def parse(self, content: bytes | bytearray) -> dict[str, object]:
        """Return the JSON object of a body whose structure has been checked. Raises RequestRejected."""
        if len(content) < LARGE_BODY_BYTES:
            return parse_json(content, self.structure)
        async with self._parsing:
            with collector_paused():
                return await asyncio.to_thread(parse_json, content, self.structure)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: it would traverse a parser's objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check_begins_as_json(start: bytes | bytearray, content_type: str) -> None:
    """Refuse an image or another file where JSON is expected, before it is counted. Raises RequestRejected."""
    if bytes(start[:1]) in JSON_STARTS and not start.startswith(JPEG_START):
        return
    named = f"{content_type[:100]}, " if content_type and "json" not in content_type.lower() else ""
    looks = "a web page" if start[:1] == b"<" else f"a body that begins with {bytes(start[:8])!r}"
    message = (
        f"the body is no JSON; got {named}{looks}, expected a JSON object; a file goes into a part of "
        "multipart/form-data, or into the JSON as base64"
    )
    raise RequestRejected([Problem(message, field="body", type="no_json")])


async def _scan_in_pieces(scan: JsonScan, chunk: bytes) -> None:
    """Scan a chunk in pieces; one that does not come from a socket may be a whole body."""
    for start in range(0, len(chunk), PIECE_BYTES):
        if start:
            await asyncio.sleep(0)
        scan.feed(chunk[start : start + PIECE_BYTES])


def _too_large(found: object, limit: int, when: str = "") -> RequestTooLarge:
    message = f"The body is too large; got {found} bytes or more, expected at most {limit}{when}"
    return RequestTooLarge(message, limit_bytes=limit)
