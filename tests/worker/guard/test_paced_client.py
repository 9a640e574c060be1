"""Transfers end whatever the other side does: no head, a byte at a time, a body that dribbles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from darkroom.worker.guard.plain_responses import plain_client

WINDOW_SECONDS = 0.3
LONG_WINDOW_SECONDS = 1.5
"""The window of transfers that come to their end: longer than a busy machine keeps a process waiting."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def dribble(writer: asyncio.StreamWriter, text: bytes) -> None:
    for letter in text:
        writer.write(bytes([letter]))
        await writer.drain()
        await asyncio.sleep(WINDOW_SECONDS / 10)


async def dribbling_head(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await dribble(writer, b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 10_000)


async def dribbling_body(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    await dribble(writer, b"a" * 10_000)


async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("serve", [dribbling_head, dribbling_body, silent])
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_server_that_never_ends_its_answer_is_given_up(serve: Serve, method: str) -> None:
    async with serving(serve) as url, plain_client(trust_env=False, timeout=WINDOW_SECONDS) as client:
        with pytest.raises(httpx.ReadTimeout):
            async with asyncio.timeout(30):
                await client.request(method, url, content=b"x" * 1000 if method == "PUT" else None)


async def test_a_body_as_slow_as_allowed_comes_whole() -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        for _ in range(10):
            writer.write(b"a" * 1000)
            await writer.drain()
            await asyncio.sleep(LONG_WINDOW_SECONDS / 5)

    async with serving(serve) as url, plain_client(trust_env=False, timeout=LONG_WINDOW_SECONDS) as client:
        assert len((await client.get(url)).content) == 10_000


async def test_time_that_the_reader_takes_does_not_count() -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
        for _ in range(3):
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(serve) as url, plain_client(trust_env=False, timeout=LONG_WINDOW_SECONDS) as client:
        async with client.stream("GET", url) as response:
            received = b""
            async for piece in response.aiter_raw():
                received += piece
                await asyncio.sleep(LONG_WINDOW_SECONDS * 0.6)
        assert received == b"aaa"


async def test_a_long_upload_may_take_longer_than_the_wait_for_its_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(LONG_WINDOW_SECONDS * 0.6)
            yield b"a"

    async with serving(serve) as url, plain_client(trust_env=False, timeout=LONG_WINDOW_SECONDS) as client:
        response = await client.put(url, content=pieces(), headers={"Content-Length": "3"})
        assert response.status_code == 200
