"""Request bodies: bounded while they are read, by size, structure and the sum of all; parsed off the event loop.

Nothing is read for a caller whose headers already say no. One who may still prove who he is by the signature within
the body (Vast's envelope) is unknown until then, and gets a small bound; an envelope that begins with its signature
proves it early and may be as large as any other body.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from fastapi import Request

from worker.api.schemas import parse_json
from worker.errors import MemoryLow, RequestTooLarge
from worker.guard.json_scan import JsonScan
from worker.setting_slices import BodyLimits, JsonLimits

LARGE_BODY_BYTES: Final = 256 * 1024
UNKNOWN_ELEMENTS: Final = 50_000
PIECE_BYTES: Final = 256 * 1024
MAX_LENGTH_DIGITS: Final = 15
UNKNOWN_SHARE: Final = 8
"""Bodies of unknown callers get an eighth of the memory for bodies, so that they keep nobody out."""


class Sender:
    """The caller of one request, as far as reading its body needs it. A known one may send large bodies."""

    def __init__(self, *, is_known: bool) -> None:
        self.is_known = is_known

    def prove(self, start: bytes | bytearray) -> bool:
        """Try to learn who the caller is from the start of the body. True once the caller is known.

        Raises Unauthorized for a proof that is wrong.
        """
        return self.is_known


class Lease:
    """Memory that the body of one request holds; given back by `BodyMemory.lease`."""

    def __init__(self, memory: BodyMemory, sender: Sender) -> None:
        self._memory = memory
        self.sender = sender
        self.num_bytes = 0
        self.is_of_known = sender.is_known

    def grow(self, num_bytes: int) -> None:
        """Take more memory. Raises MemoryLow."""
        self._memory.take(self, num_bytes)


class BodyMemory:
    """The sum of all bodies that are held, those of unknown callers within a small share of it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_unknown_bytes = 0

    @property
    def num_unknown_bytes_left(self) -> int:
        """How much the bodies of unknown callers may still take."""
        return self._max_bytes // UNKNOWN_SHARE - self._num_unknown_bytes

    @contextlib.contextmanager
    def lease(self, sender: Sender) -> Iterator[Lease]:
        """Hold memory for a body as long as the block lasts."""
        lease = Lease(self, sender)
        try:
            yield lease
        finally:
            self._num_bytes -= lease.num_bytes
            if not lease.is_of_known:
                self._num_unknown_bytes -= lease.num_bytes

    def take(self, lease: Lease, num_bytes: int) -> None:
        """Count more bytes for a lease. Raises MemoryLow."""
        if lease.sender.is_known and not lease.is_of_known:
            self._num_unknown_bytes -= lease.num_bytes
            lease.is_of_known = True
        share = self._max_bytes if lease.is_of_known else self._max_bytes // UNKNOWN_SHARE
        held = self._num_bytes if lease.is_of_known else self._num_unknown_bytes
        if held and held + num_bytes > share:  # one alone may always be sent: its own bound holds for it
            message = f"request bodies: too many at once; got {held + num_bytes} bytes, expected at most {share}"
            raise MemoryLow(message, retry_after_seconds=2)
        lease.num_bytes += num_bytes
        self._num_bytes += num_bytes
        if not lease.is_of_known:
            self._num_unknown_bytes += num_bytes


class Bodies:
    """Reader and parser of request bodies. Large ones are parsed one at a time."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.memory = BodyMemory(limits.max_pending_bytes)
        self._parsing = asyncio.Lock()

    def max_bytes(self, sender: Sender) -> int:
        """Return how large a body of this caller may be."""
        return self.limits.max_bytes if sender.is_known else min(self.limits.max_unknown_bytes, self.limits.max_bytes)

    def json_limits(self, sender: Sender) -> JsonLimits:
        """Return the bounds on the structure of this caller's JSON."""
        limits = self.limits.json
        return limits if sender.is_known else replace(limits, max_elements=min(limits.max_elements, UNKNOWN_ELEMENTS))

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
                scan.limits = self.json_limits(sender)
            self.check_size(len(body), sender, max_bytes)
            await _scan_in_pieces(scan, chunk)
        return body

    def check_length(self, request: Request, max_bytes: int | None = None) -> None:
        """Refuse a body that is announced as too long for anybody. Raises RequestTooLarge."""
        declared = request.headers.get("content-length", "")
        limit = min(self.limits.max_bytes, max_bytes or self.limits.max_bytes)
        if declared.isascii() and declared.isdigit() and (len(declared) > MAX_LENGTH_DIGITS or int(declared) > limit):
            raise _too_large(declared[:MAX_LENGTH_DIGITS], limit)

    def check_size(self, num_bytes: int, sender: Sender, max_bytes: int | None = None) -> None:
        """Refuse a body that is too long for this caller. Raises RequestTooLarge."""
        limit = min(self.max_bytes(sender), max_bytes or self.limits.max_bytes)
        if num_bytes > limit:
            raise _too_large(num_bytes, limit, "" if sender.is_known else " before its caller is known")

    async def parse(self, content: bytes | bytearray) -> dict[str, Any]:
        """Return the JSON object of a body whose structure has been checked. Raises RequestRejected."""
        if len(content) < LARGE_BODY_BYTES:
            return parse_json(content)
        async with self._parsing:
            with collector_paused():
                return await asyncio.to_thread(parse_json, content)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: it would walk over all that a parser makes again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _scan_in_pieces(scan: JsonScan, chunk: bytes) -> None:
    """Scan a chunk; one that does not come from a socket may be a whole body."""
    for start in range(0, len(chunk), PIECE_BYTES):
        if start:
            await asyncio.sleep(0)
        scan.feed(chunk[start : start + PIECE_BYTES])


def _too_large(found: object, limit: int, when: str = "") -> RequestTooLarge:
    message = f"The body is too large; got {found} bytes or more, expected at most {limit}{when}"
    return RequestTooLarge(message, limit_bytes=limit)
