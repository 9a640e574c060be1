"""Bodies with a Content-Encoding: unpacked as they arrive, before any route reads them.

Routes count the bytes that they receive, which are the unpacked ones, so a small body that unpacks to a large one meets
the limit that the large one would. No piece is larger than PIECE_BYTES, whatever the ratio. A body that unpacks to much
less than itself, as one of empty gzip members, would meet no limit: it is refused. An encoding that is not
read is refused with 415 and `Accept-Encoding` (RFC 9110, 12.5.3).
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from darkroom.worker.api.results import refuse
from darkroom.worker.errors import EncodingUnsupported, Problem, RequestRejected

PIECE_BYTES: Final = 256 * 1024
MAX_MEMBERS: Final = 10_000  # of a gzip body; writers make one, or one for each 64 KiB
MAX_PACKED_RATIO: Final = 4
SPARE_PACKED_BYTES: Final = 64 * 1024
"""A body may have so many bytes more than MAX_PACKED_RATIO times those that it unpacks to."""

PLAIN: Final = frozenset({"", "identity"})
ENCODINGS: Final = ("gzip", "deflate")
GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class PackedBodies:
    """ASGI middleware that hands on the unpacked body of a request, without its Content-Encoding and its length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body unpacked, or refuse its encoding."""
        encoding = encoding_of(scope) if scope["type"] == "http" else ""
        if encoding in PLAIN:
            await self._app(scope, receive, send)
            return
        if encoding not in ENCODINGS:
            allowed = ", ".join(ENCODINGS)
            message = f"Content-Encoding: not read; got {encoding[:100]}, expected {allowed}, or none"
            response = refuse(EncodingUnsupported(message, field="Content-Encoding", allowed=list(ENCODINGS)))
            response.headers["Accept-Encoding"] = allowed
            await response(scope, receive, send)
            return
        headers = [entry for entry in scope["headers"] if entry[0] not in (b"content-encoding", b"content-length")]
        await self._app({**scope, "headers": headers}, _Unpacking(receive, encoding), send)


def encoding_of(scope: Scope) -> str:
    """Return the Content-Encoding of a request, in lower case; several as a list with commas."""
    found = [value.decode("latin-1").strip().lower() for name, value in scope["headers"] if name == b"content-encoding"]
    return ", ".join(found).replace("x-gzip", "gzip")


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class _Unpacking:
    """ASGI `receive` that returns the pieces of an unpacked body. Raises RequestRejected for what does not unpack."""

    def __init__(self, receive: Receive, encoding: str) -> None:
        self._receive = receive
        self._encoding = encoding
        self._unpacker: _Unpacker | None = None
        self._packed = b""  # received, not unpacked yet
        self._has_more = False  # of what was taken in already
        self._is_received = False
        self._is_handed_on = False
        self._num_members = 0
        self._num_packed_bytes = 0
        self._num_unpacked_bytes = 0

    async def __call__(self) -> Message:
        """Return the next piece, then further messages of the client."""
        if self._is_handed_on:
            return await self._receive()
        while True:
            piece = self._unpack()
            if piece:
                self._num_unpacked_bytes += len(piece)
                await asyncio.sleep(0)  # a small body may have many pieces
                return {"type": "http.request", "body": piece, "more_body": True}
            allowed_bytes = SPARE_PACKED_BYTES + MAX_PACKED_RATIO * self._num_unpacked_bytes
            if self._num_packed_bytes > allowed_bytes:
                raise self._damaged(f"unpacks to {self._num_unpacked_bytes} bytes of {self._num_packed_bytes}")
            if self._is_received:
                self._is_handed_on = True
                if self._unpacker is not None and not self._unpacker.eof:
                    raise self._damaged("is cut short")
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            chunk = message.get("body", b"")
            self._packed += chunk
            self._num_packed_bytes += len(chunk)
            self._is_received = not message.get("more_body", False)

    def _unpack(self) -> bytes:
        """Return the next piece of what has been received; empty where more is needed."""
        while self._packed or self._has_more:
            if self._unpacker is None or self._unpacker.eof:  # a gzip body may consist of several members
                if self._unpacker is not None and self._encoding != "gzip":
                    raise self._damaged("goes on behind its end")
                self._num_members += 1
                if self._num_members > MAX_MEMBERS:
                    raise self._damaged(f"has more than {MAX_MEMBERS} gzip members")
                self._unpacker = zlib.decompressobj(_window(self._encoding, self._packed))
            try:
                piece = self._unpacker.decompress(self._packed, PIECE_BYTES)
            except zlib.error as error:
                raise self._damaged(f"does not unpack ({error})") from None
            self._packed = self._unpacker.unused_data if self._unpacker.eof else self._unpacker.unconsumed_tail
            self._has_more = len(piece) == PIECE_BYTES and not self._unpacker.eof
            if piece:
                return piece
        return b""

    def _damaged(self, problem: str) -> RequestRejected:
        self._is_handed_on = True
        message = f"the body {problem}; expected a whole {self._encoding} stream, as Content-Encoding says"
        return RequestRejected([Problem(message, field="body", type="encoding")])


def _window(encoding: str, start: bytes) -> int:
    """Return zlib's window size; `deflate` is zlib's format, but some clients send it without its head."""
    if encoding == "gzip":
        return GZIP_WINDOW
    has_head = start[0] & 0x0F == 8 and (len(start) < 2 or (start[0] * 256 + start[1]) % 31 == 0)
    return zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS
