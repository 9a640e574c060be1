"""EngineHttp: HTTP/1.1 to the engine over kept-alive connections, and nothing more.

A job costs three requests to an engine on the same machine, and a general client spends more time on each than the
engine does (it was most of the front's time), so this one is our own: requests with a length, replies with a length, in
chunks or to the end of the connection, over TCP or a Unix socket. No redirects, no cookies. A reply that is compressed,
or whose body is larger than any of an engine's, is an error.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from darkroom.worker.engines import answers
from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.guard.network_errors import cause_of

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 15.0  # shorter than any server keeps a connection, so that one taken up again is alive
MAX_HEAD_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # /object_info of a large installation is some 10 MiB
LARGE_ANSWER_BYTES = 256 * 1024  # from here on parsed off the event loop
SLOWEST_FILE_BYTES_PER_SECOND = 10_000  # at which a file may come, as a whole,
LONGEST_FILE_START_SECONDS = 600.0  # but for the time that it has beyond that
MAX_LENGTH_DIGITS = 18
CHUNK_BYTES = 256 * 1024
SLOWEST_BYTES_PER_SECOND = 500_000  # at which a large body may be sent
BACKLOG_PAUSE_SECONDS = 0.01

Answer = TypeVar("Answer")


class BadResponse(Exception):
    """Reply that is not read: compressed, or too large. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of an engine. `route` is the method and path that it answers, without the query."""

    status: int
    body: bytes
    route: str = ""

    async def json_value(self) -> Any:
        """Return the body as JSON. Raises EngineAnswerInvalid."""
        return await self._parsed(answers.parse)

    async def json_object(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raises EngineAnswerInvalid."""
        return await self._parsed(answers.parse_object)

    async def _parsed(self, parse: Callable[[str, bytes], Answer]) -> Answer:
        """Parse the body, a large one in a thread that waits for no caller's document."""
        if len(self.body) <= LARGE_ANSWER_BYTES:
            return parse(self.route, self.body)
        return await asyncio.to_thread(parse, self.route, self.body)


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    length: int | None
    is_chunked: bool
    keeps_alive: bool


class EngineHttp:
    """HTTP client of one engine. Every failure to get a reply is an EngineUnreachable.

    `timeout_seconds` is for a whole exchange, with more for a large body; of a stream, for each piece. A body that is
    held in memory has at most `max_answer_bytes`.
    """

    def __init__(
        self,
        address: EngineAddress | str,
        timeout_seconds: float = 60.0,
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._address = EngineAddress.of(address)
        parts = urlsplit(self._address.http_url)
        self._host = parts.hostname or "127.0.0.1"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._common_lines = [
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Accept-Encoding: identity",
            *(f"{name}: {value}" for name, value in self._address.headers.items()),
        ]
        self._timeout_seconds = timeout_seconds
        self._max_answer_bytes = max_answer_bytes
        self._idle: list[_Connection] = []

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = "application/json",
        *,
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> Reply:
        """Return the reply to a request, of `max_bytes` at most where they are fewer than an answer may have."""
        async with self._exchange(method, path, body, content_type, headers or {}) as (head, connection, _):
            body_read = bytearray()
            async for piece in _body(connection.reader, head):
                body_read += piece
                if len(body_read) > (max_bytes or self._max_answer_bytes):
                    raise BadResponse(f"got over {max_bytes or self._max_answer_bytes} bytes, expected fewer")
            return Reply(head.status, bytes(body_read), _route(method, path))

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Request a path by GET. Yields the status and the body piece by piece."""
        async with self._exchange("GET", path, b"", "", {}) as (head, connection, limit):
            yield head.status, self._in_time(_body(connection.reader, head), limit)

    async def _in_time(self, pieces: AsyncIterator[bytes], limit: asyncio.Timeout) -> AsyncIterator[bytes]:
        """Yield the pieces, each within the time limit: a large file may take long as a whole, but not without end."""
        clock = asyncio.get_running_loop().time
        latest = clock() + max(self._timeout_seconds, LONGEST_FILE_START_SECONDS)
        async for piece in pieces:
            latest += len(piece) / SLOWEST_FILE_BYTES_PER_SECOND
            limit.reschedule(min(clock() + self._timeout_seconds, latest))
            yield piece

    async def close(self) -> None:
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes, content_type: str, headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[_Head, _Connection, asyncio.Timeout]]:
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_seconds + len(body) / SLOWEST_BYTES_PER_SECOND) as limit:
                connection = await self._connect()
                connection.writer.write(self._head_of(method, path, body, content_type, headers) + body)
                await connection.writer.drain()
                head = _parse_head(await connection.reader.readuntil(b"\r\n\r\n"))
                yield head, connection, limit
            if head.keeps_alive:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
                connection = None
        except BadResponse as error:
            raise answers.invalid(_route(method, path), str(error)) from None
        except (UnicodeError, ValueError, asyncio.LimitOverrunError):
            raise answers.invalid(_route(method, path), "no HTTP/1.1") from None
        except (OSError, EOFError, TimeoutError) as error:
            raise EngineUnreachable(f"Cannot connect to the engine: {cause_of(error)}") from None
        finally:
            if connection is not None:
                connection.writer.close()

    async def _connect(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            is_fresh = time.monotonic() - connection.idle_since < IDLE_SECONDS
            if is_fresh and not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            connection.writer.close()
        async with asyncio.timeout(CONNECT_SECONDS):
            if self._address.socket is not None:
                connected = await _connected(self._address.socket.path)
                opened = await asyncio.open_unix_connection(sock=connected, limit=MAX_HEAD_BYTES)
            else:
                opened = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=MAX_HEAD_BYTES)
        return _Connection(*opened)

    def _head_of(self, method: str, path: str, body: bytes, content_type: str, headers: Mapping[str, str]) -> bytes:
        own = (f"{name}: {value}" for name, value in headers.items())
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", *self._common_lines, *own]
        if method in ("POST", "PUT"):
            lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode()


def _parse_head(raw: bytes) -> _Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip().lower()
    if headers.get("content-encoding", "") not in ("", "identity"):
        raise BadResponse(f"Content-Encoding: got {headers['content-encoding'][:40]!r}, expected identity")
    length = headers.get("content-length")
    is_chunked = headers.get("transfer-encoding", "") == "chunked"
    has_end = length is not None or is_chunked or status == "204"
    return _Head(
        status=int(status),
        length=0 if status == "204" else None if length is None else _count(length, 10),
        is_chunked=is_chunked,
        keeps_alive=version == "HTTP/1.1" and has_end and headers.get("connection") != "close",
    )


def _count(text: str, base: int) -> int:
    """Return a number of bytes. Raises BadResponse."""
    if len(text) > MAX_LENGTH_DIGITS or not text.isalnum():
        raise BadResponse(f"a length; got {text[:40]!r}, expected a number of bytes")
    return int(text, base)


def _route(method: str, path: str) -> str:
    return f"{method} {path.partition('?')[0]}"


async def _connected(path: Path) -> socket.socket:
    """Connect to a Unix socket. A full backlog is waited out, since connecting itself never waits."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        while True:
            try:
                opened.connect(str(path))
                return opened
            except BlockingIOError:
                await asyncio.sleep(BACKLOG_PAUSE_SECONDS)
    except BaseException:  # cancelled, too
        opened.close()
        raise


async def _body(reader: asyncio.StreamReader, head: _Head) -> AsyncIterator[bytes]:
    if head.is_chunked:
        while (size := _count((await reader.readuntil(b"\r\n")).split(b";")[0].strip().decode("latin-1"), 16)) > 0:
            async for piece in _exactly(reader, size):
                yield piece
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    elif head.length is None:
        while piece := await reader.read(CHUNK_BYTES):
            yield piece
    else:
        async for piece in _exactly(reader, head.length):
            yield piece


async def _exactly(reader: asyncio.StreamReader, num_bytes: int) -> AsyncIterator[bytes]:
    """Yield so many bytes in pieces: what a chunk or a length declares is never waited for as one."""
    while num_bytes > 0:
        piece = await reader.read(min(num_bytes, CHUNK_BYTES))
        if not piece:
            raise EOFError
        num_bytes -= len(piece)
        yield piece
