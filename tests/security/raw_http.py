"""HTTP by hand: half requests, slow ones, and answers to them, over a plain or a TLS socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

STRANGER: Mapping[str, str] = {"X-Forwarded-For": "203.0.113.9"}
"""Headers of somebody behind a proxy, who has not the trust of this machine."""


@dataclass
class RawClient:
    """One connection. `source` is the address it comes from, one of 127.0.0.0/8."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, url: str, source: str = "127.0.0.1", *, is_tls: bool | None = None) -> RawClient:
        """Open a connection to the server of a URL."""
        parts = urlsplit(url)
        context = None
        if is_tls if is_tls is not None else parts.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port, local_addr=(source, 0), ssl=context, limit=2**20
        )
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request, its length announced as that of `body` where the headers announce none."""
        given = {"Host": "127.0.0.1", **({"Content-Length": str(len(body))} if body else {}), **(headers or {})}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items())
        await self.send(head.encode() + b"\r\n" + body)

    async def status(self, seconds: float = 60) -> int:
        """Return the status of the next answer. Raises EOFError where the connection ends before one."""
        async with asyncio.timeout(seconds):
            head = await self.head()
        return int(head.split()[1])

    async def head(self) -> str:
        """Return the head of the next answer, in lower case; its body is read and dropped."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "content-length:" in head:
            await self.reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
        return head

    async def is_closed_within(self, seconds: float) -> bool:
        """True once the server has ended the connection."""
        try:
            async with asyncio.timeout(seconds):
                while await self.reader.read(65536):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        """End the connection at once."""
        self.writer.transport.abort()
